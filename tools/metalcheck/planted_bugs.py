"""Mistakes that show when a kernel runs: 128 threads, `inp (128,) float -> out (128,) float`."""

from __future__ import annotations

# name -> body. Where nothing is wrong every output is 1, or a sum of inputs that no schedule changes.
BUGS: dict[str, str] = {
    "missing barrier (TG write->read)": """
        threadgroup float s[128];
        uint t = thread_index_in_threadgroup; s[t] = inp[t];
        out[t] = s[127 - t];
    """,
    "missing 2nd barrier in loop": """
        threadgroup float s[128];
        uint t = thread_index_in_threadgroup; float a = 0.0f;
        for (int i = 0; i < 4; i++) {
        s[t] = inp[t] + float(i);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        a += s[127 - t];
        }
        out[t] = a;
    """,
    "barrier in divergent branch": """
        uint t = thread_index_in_threadgroup;
        if (t < 64u) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        out[t] = 1.0f;
    """,
    "different barriers by branch": """
        uint t = thread_index_in_threadgroup;
        if (t < 64u) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        } else {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        out[t] = 1.0f;
    """,
    "early return before barrier": """
        uint t = thread_index_in_threadgroup;
        if (t >= 100u) return;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        out[t] = 1.0f;
    """,
    "simd_sum in divergent branch": """
        uint t = thread_index_in_threadgroup;
        float v = 0.0f;
        if (t % 2u == 0u) v = simd_sum(1.0f);
        out[t] = v;
    """,
    "device OOB read (1 past end)": """
        uint t = thread_index_in_threadgroup; out[t] = inp[t + 1];
    """,
    "device OOB write": """
        uint t = thread_index_in_threadgroup; out[t + 1] = 1.0f;
    """,
    "TG OOB write": """
        threadgroup float s[127];
        uint t = thread_index_in_threadgroup; s[t] = inp[t];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        out[t] = s[t % 127u];
    """,
    "thread array OOB": """
        float a[4];
        uint t = thread_index_in_threadgroup;
        for (uint i = 0; i < 4u; i++) a[i] = 0.0f;
        a[t % 5u] = 1.0f;
        out[t] = a[0];
    """,
    "int overflow / shift >= 32": """
        uint t = thread_index_in_threadgroup; int x = 2147483647; x += int(t); out[t] = float(x);
    """,
    "unwritten output element": """
        uint t = thread_index_in_threadgroup; if (t != 5u) out[t] = 1.0f;
    """,
    "uninitialised TG read": """
        threadgroup float s[128];
        uint t = thread_index_in_threadgroup;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        out[t] = s[t] * 0.0f + 1.0f;
    """,
    "device race, non-atomic +=": """
        uint t = thread_index_in_threadgroup; out[0] += 1.0f; out[t] = 1.0f;
    """,
    "cross-threadgroup race": """
        uint t = thread_position_in_grid.x; out[t % 64u] = float(t);
    """,
    "CAS weak without loop": """
        device atomic_uint* a = (device atomic_uint*)out + thread_index_in_threadgroup;
        uint e = 0u;
        bool ok = atomic_compare_exchange_weak_explicit(
            a, &e, 1065353216u, memory_order_relaxed, memory_order_relaxed);
    """,
    "TG memory > 32 KB": """
        threadgroup float s[9000];
        uint t = thread_index_in_threadgroup; s[t] = 1.0f; out[t] = s[t];
    """,
    "misaligned 16-byte read": """
        uint t = thread_index_in_threadgroup;
        const device float4* v = (const device float4*)(inp + 1);
        out[t] = v[t % 8u].x;
    """,
}
