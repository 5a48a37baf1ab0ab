"""Mistakes in Metal text, each in a kernel `inp (64,) float, small (3,) int -> out (64,) float`."""

from __future__ import annotations

# name -> (header, body); accepted by the checks
RIGHT: dict[str, tuple[str, str]] = {
    "a helper with a device pointer": (
        "inline float f(const device float* p, uint i) { return p[i]; }",
        "out[thread_position_in_grid.x] = f(inp, 0);",
    ),
    "a member function": (
        "struct S { float x; float f(int i) thread { if (i > 0) { x += 1.0f; } return x; } "
        "static int g() { return 1; } };",
        "S s; s.x = inp[0]; out[0] = s.f(S::g());",
    ),
    "unsuffixed literals": (
        "",
        "out[0] = inp[0] * 2.0 + 1.5;",
    ),
    "structs of matrices": (
        "struct S { simdgroup_matrix<half, 8, 8> m[2]; S() thread {} }; struct R { S s[2]; R() thread {} };",
        "R r; out[0] = float(r.s[1].m[0].thread_elements()[1]);",
    ),
    "vectors": (
        "",
        "float4 v = float4(1.0f, 2.0f, inp[0], 0.0f); uint2 u = uint2(3); out[u.x] = v.x; "
        "float4 w = float4(int4(1)), x = float4(float2(1.0f), inp[0], 1); out[1] = w.x + x.y;",
    ),
    "pointers behind other names": (
        "using P = const device float*; typedef device float* Q; "
        "inline float f(threadgroup float (&p)[4]) { return p[0]; }",
        "threadgroup float t[4]; t[0] = *P(inp) * (inp[1]) + *reinterpret_cast<const device float*>(inp); "
        "Q q = out; q[0] = f(t);",
    ),
}

# Caught by nothing here: Metal forbids recursion, clang does not mind.
UNSEEN: dict[str, tuple[str, str]] = {
    "recursion": (
        "inline int f(int n) { return n < 2 ? n : f(n - 1) + f(n - 2); }",
        "out[0] = float(f(5));",
    ),
}

# name -> (header, body); refused
WRONG: dict[str, tuple[str, str]] = {
    "helper param without AS (float*)": (
        "inline float f(const float* p, uint i) { return p[i]; }",
        "out[0] = f(inp, 0);",
    ),
    "cast that drops the AS": (
        "",
        "threadgroup float t[4]; t[0] = inp[0]; out[0] = *(float*)t;",
    ),
    "cast to another AS": (
        "template <typename T> struct S { threadgroup T* to; void f() thread { *(device int*)to = 1; } };",
        "threadgroup float t[4]; S<float> s; s.to = t; s.f(); out[0] = 1.0f;",
    ),
    "cast of an expression to another AS": (
        "template <typename T> void f(threadgroup T* to) { *(device int*)(to + 1) = 1; }",
        "threadgroup float t[4]; f(t); out[0] = 1.0f;",
    ),
    "local ptr without AS = device": (
        "",
        "const float* p = inp; out[0] = p[0];",
    ),
    "unqualified ptr to local (thread)": (
        "",
        "float t = 1.0f; float* p = &t; out[0] = *p;",
    ),
    "reference param without AS": (
        "inline void f(float& x) { x += 1.0f; }",
        "float t = 0.0f; f(t); out[0] = t;",
    ),
    "device ptr <- threadgroup ptr": (
        "",
        "threadgroup float s[32];\n s[0] = 1.0f; device float* p = s; out[0] = p[0];",
    ),
    "constant passed as device": (
        "inline float f(const device int* p) { return float(p[0]); }",
        "out[0] = f(small);",
    ),
    "pass device const, drop const": (
        "inline void f(device float* p) { p[0] = 1.0f; }",
        "f(inp);",
    ),
    "threadgroup var in helper": (
        "inline float f(uint i) {\n threadgroup float s[4];\n s[i] = 1.0f; return s[i]; }",
        "out[0] = f(0);",
    ),
    "threadgroup initialiser": (
        "",
        "threadgroup int s = 0;\n out[0] = float(s);",
    ),
    "double": (
        "",
        "double x = 1.0; out[0] = float(x);",
    ),
    "undeclared builtin (warp)": (
        "",
        "out[0] = __shfl_down(inp[0], 1);",
    ),
    "undeclared simd fn": (
        "",
        "out[0] = simd_reduce_sum(inp[0]);",
    ),
    "simd_shuffle on uint64": (
        "",
        "ulong v = 3; out[0] = float(simd_shuffle(v, 0));",
    ),
    "simd_sum on bool": (
        "",
        "bool v = true; out[0] = float(simd_sum(v));",
    ),
    "64-bit CAS": (
        "",
        "device atomic_ulong* a = (device atomic_ulong*)out; "
        "ulong e = 0; "
        "atomic_compare_exchange_weak_explicit(a, &e, 1ul, memory_order_relaxed, memory_order_relaxed);",
    ),
    "atomic float max": (
        "",
        "device atomic_float* a = (device atomic_float*)out; "
        "atomic_fetch_max_explicit(a, 1.0f, memory_order_relaxed);",
    ),
    "acquire/release order": (
        "",
        "device atomic_uint* a = (device atomic_uint*)out; "
        "atomic_store_explicit(a, 1u, memory_order_release);",
    ),
    "CAS strong": (
        "",
        "device atomic_uint* a = (device atomic_uint*)out; "
        "uint e = 0; "
        "atomic_compare_exchange_strong_explicit(a, &e, 1u, memory_order_relaxed, memory_order_relaxed);",
    ),
    "implicit float->bfloat": (
        "",
        "bfloat x = inp[0]; out[0] = float(x);",
    ),
    "float4 -> half4 implicit": (
        "",
        "float4 v = float4(1.0f); half4 h = v; out[0] = float(h.x);",
    ),
    "narrowing in braces": (
        "",
        "int a[1] = {inp[0]}; out[0] = float(a[0]);",
    ),
    "min(int,uint) mixed": (
        "",
        "uint i = thread_position_in_grid.x; int n = 3; out[0] = float(min(i, n));",
    ),
    "std:: used": (
        "",
        "out[0] = std::max(1.0f, inp[0]);",
    ),
    "printf / host fn": (
        "",
        'printf("x"); out[0] = 0.0f;',
    ),
    "new/heap": (
        "",
        "thread float* p = new float[3]; out[0] = p[0];",
    ),
    "virtual": (
        "struct A { virtual float f() { return 1.0f; } };",
        "A a; out[0] = a.f();",
    ),
    "global mutable var": (
        "int counter = 0;",
        "counter++; out[0] = float(counter);",
    ),
    "file-scope constexpr w/o constant": (
        "constexpr int Q = 3;",
        "out[0] = float(Q);",
    ),
    "try/throw": (
        "",
        "throw 1;",
    ),
    "goto": (
        "",
        "goto e; e: out[0] = 0.0f;",
    ),
    "variable-length array": (
        "",
        "int n = small[0]; float t[n]; t[0] = 1.0f; out[0] = t[0];",
    ),
    "missing attribute name typo": (
        "",
        "out[thread_pos_in_grid.x] = 1.0f;",
    ),
    "write to const input": (
        "",
        "inp[0] = 1.0f;",
    ),
    "atomic direct read": (
        "",
        "device atomic_uint* a = (device atomic_uint*)out; uint v = a[0]; out[1] = float(v);",
    ),
    "simdgroup_matrix 16x16": (
        "",
        "simdgroup_matrix<float, 16, 16> m; out[0] = 0.0f;",
    ),
    "simdgroup_load wrong AS/type": (
        "",
        "simdgroup_matrix<half, 8, 8> m; simdgroup_load(m, inp, 8); out[0] = 0.0f;",
    ),
    "shape of undeclared input": (
        "",
        "out[0] = float(foo_shape[0]);",
    ),
    "a type's name for a variable": (
        "inline float f(int half) { return float(half); }",
        "out[0] = f(1);",
    ),
    "a reserved word for a variable": (
        "",
        "int kernel = 1; out[0] = float(kernel);",
    ),
    "a member function of no address space": (
        "struct S { float x; float f() const { return x; } };",
        "S s; s.x = inp[0]; out[0] = s.f();",
    ),
    "a letter that is not ASCII": (
        "",
        "out[0] = inp[0]; // \u00b5",
    ),
    "C++17: arguments of a class template from its constructor": (
        "template <typename T> struct S { T x; S(T y) thread : x(y) {} };",
        "S s(inp[0]); out[0] = s.x;",
    ),
    "C++17: structured binding": (
        "struct S { int a, b; };",
        "S s = {1, 2}; auto [a, b] = s; out[0] = float(a + b);",
    ),
    "helper param without AS and name": (
        "inline float f(float x, const float*) { return x; }",
        "out[0] = f(inp[0], inp);",
    ),
    "matrices without a constructor": (
        "struct S { simdgroup_matrix<float, 8, 8> m; };",
        "S s; out[0] = s.m.thread_elements()[0];",
    ),
    "matrices and a defaulted constructor": (
        "struct S { simdgroup_matrix<float, 8, 8> m; S() thread = default; };",
        "S s; out[0] = s.m.thread_elements()[0];",
    ),
    "cast by name that drops the AS": (
        "",
        "threadgroup float t[4]; t[0] = inp[0]; out[0] = *reinterpret_cast<float*>(t);",
    ),
    "pointer without AS as a template's argument": (
        "template <typename T> inline float f(T p) { return p[0]; }",
        "out[0] = f<const float*>(inp);",
    ),
    "pointer without AS behind another name": (
        "using P = const float*; inline float f(P p) { return p[0]; }",
        "out[0] = f(inp);",
    ),
    "pointer without AS behind a typedef": (
        "typedef const float* P; inline float f(P p) { return p[0]; }",
        "out[0] = f(inp);",
    ),
    "pointer without AS behind a macro": (
        "#define P float*\ninline float f(P p) { return p[0]; }",
        "threadgroup float t[4]; t[0] = inp[0]; out[0] = f(t);",
    ),
    "reference to an array without AS": (
        "inline float f(float (&p)[4]) { return p[0]; }",
        "threadgroup float t[4]; t[0] = inp[0]; out[0] = f(t);",
    ),
    "a word of OpenCL": (
        "",
        "__local float* p; out[0] = 1.0f;",
    ),
    "more values than a vector has": (
        "",
        "float2 v = float2(1.0f, 2.0f, inp[0]); out[0] = v.x;",
    ),
    "cast of a long expression to another AS": (
        "",
        "out[0] = *(const thread float*)(inp + (1 + (1 + int(inp[0]))));",
    ),
    "float atomics in threadgroup memory": (
        "",
        "threadgroup float t[2]; "
        "atomic_fetch_add_explicit((threadgroup atomic_float*)t, 1.0f, memory_order_relaxed); out[0] = t[0];",
    ),
    "missing barrier flag arg": (
        "",
        "threadgroup_barrier(); out[0] = 0.0f;",
    ),
}
