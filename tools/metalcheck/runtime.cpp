// Runs one Metal kernel on the CPU: a fiber per GPU thread, one threadgroup at a time per OS thread.
//
// A fiber runs until it meets a barrier, a simd-group function, or (with a seed) an atomic. Barriers and
// collectives complete when the last thread that must take part arrives; a thread that arrives at another one,
// or returns while others wait, is an error. Compiled without sanitizers, so that they do not see the scheduler;
// -DMSL_TSAN and -DMSL_ASAN tell which of them watches the kernel.
#include "runtime.h"

// ---------------------------------------------------------------- scheduling

static void switch_to(Group* G, void** save, int fiber) { // fiber = -1: the scheduler
  G->current = fiber;
#if MSL_TSAN
  __tsan_switch_to_fiber(fiber < 0 ? G->tsan_main : G->fibers[fiber].tsan, 1 /* no synchronisation */);
#endif
  msl_switch(save, fiber < 0 ? G->main_stack_pointer : G->fibers[fiber].stack_pointer);
}

static void push(Group* G, int fiber) { G->queue[(G->head + G->queued++) % MAX_THREADS] = fiber; }

static int pop(Group* G) {
  if (!G->queued) return -1;
  if (G->options->seed) {
    unsigned k = (G->head + next_random(G) % G->queued) % MAX_THREADS;
    int t = G->queue[k];
    G->queue[k] = G->queue[G->head];
    G->queue[G->head] = t;
  }
  int fiber = G->queue[G->head];
  G->head = (G->head + 1) % MAX_THREADS;
  G->queued--;
  return fiber;
}

static void block(Group* G) {
  Fiber& me = G->fibers[G->current];
  int next = G->failed ? -1 : pop(G);
  if (next != G->current) switch_to(G, &me.stack_pointer, next);
}

static void release(Group* G, int fiber) {
  G->fibers[fiber].state = RUNNING;
  if (fiber != G->current) push(G, fiber);
}

// ---------------------------------------------------------------- what the shim calls

extern "C" unsigned msl_lane(void) {
  Group* G = group();
  return G->fibers[G->current].context.lane;
}

extern "C" unsigned msl_mask(void) { // lanes that took part in the collective that just ended
  Group* G = group();
  return G->simdgroups[G->fibers[G->current].context.simdgroup].mask;
}

extern "C" void msl_preempt(void) {
  Group* G = group();
  if (G->options->seed && next_random(G) % 4 == 0 && G->queued) {
    push(G, G->current);
    block(G);
  }
}

extern "C" int msl_spurious(void) { // whether a weak compare-exchange fails without cause
  Group* G = group();
  return G->options->seed && next_random(G) % 8 == 0;
}

// Memory of the threadgroup variable declared at `line`, poisoned. A fresh block for every threadgroup under ASan
// (red zones) and TSan (no address is used twice, so nothing of an earlier threadgroup is seen).
extern "C" void* msl_tg(size_t bytes, int line) {
  Group* G = group();
  for (int i = 0; i < G->num_variables; i++)
    if (G->variables[i].line == line) return G->variables[i].memory;
  int i = G->num_variables++;
  GroupVariable& v = G->variables[i];
  v.line = line;
  if (MSL_TSAN) {
    v.memory = G->arena;
    G->arena += (bytes + 127) / 64 * 64;
  } else if (MSL_ASAN || i >= G->num_kept || v.capacity < bytes) {
    v.memory = malloc(bytes);
    if (!MSL_ASAN) {
      v.capacity = bytes;
      G->num_kept = i + 1;
    }
  }
  for (size_t k = 0; k < bytes; k++) ((volatile char*)v.memory)[k] = (char)0xFF;
  G->variable_bytes += bytes;
  if (G->variable_bytes > G->options->max_group_bytes)
    error(G, "threadgroup memory %d B exceeds limit %d B", G->variable_bytes, G->options->max_group_bytes);
  if (G->variable_bytes > G->options->group_bytes) G->options->group_bytes = G->variable_bytes;
  return v.memory;
}

typedef void (*Collective)(void* slots, unsigned mask, const void*);

static void* collective(const void* in, unsigned bytes, Collective function, const void* extra, int site,
                        bool synchronises) {
  Group* G = group();
  Fiber& me = G->fibers[G->current];
  Simdgroup& s = G->simdgroups[me.context.simdgroup];
  int lane = me.context.lane, base = me.context.simdgroup * 32;
#if MSL_TSAN
  char* tag = &s.tag[(s.parity ^ (s.arrived == 0)) & 1];
  if (synchronises) __tsan_release(tag);
#endif
  if (s.arrived && s.site != site)
    error(G, "simd-group divergence: thread %d at line %d, other lanes at line %d", G->current, site, s.site);
  if (s.arrived == 0) {
    s.parity ^= 1;
    s.site = site;
  }
  Slot& slot = s.slots[s.parity][lane];
  for (unsigned i = 0; i < bytes; i++) // not memcpy: TSan intercepts it
    ((volatile unsigned char*)slot.bytes)[i] = ((const unsigned char*)in)[i];
  s.arrived |= 1u << lane;
  me.state = IN_COLLECTIVE;
  me.site = site;
  if (s.arrived == s.live) {
    if (function) function(s.slots[s.parity], s.arrived, extra);
    for (int l = 0; l < 32; l++)
      if (s.arrived >> l & 1) release(G, base + l);
    s.mask = s.arrived;
    s.arrived = 0;
  } else block(G);
  if (G->failed) block(G);
#if MSL_TSAN
  if (synchronises) __tsan_acquire(tag);
#endif
  return slot.bytes;
}

extern "C" void* msl_simd(const void* in, unsigned bytes, Collective function, const void* extra, int site) {
  return collective(in, bytes, function, extra, site, false);
}

extern "C" void msl_barrier(int of_simdgroup, int site) {
  if (of_simdgroup) {
    unsigned nothing = 0;
    collective(&nothing, sizeof nothing, nullptr, nullptr, site, true);
    return;
  }
  Group* G = group();
  Fiber& me = G->fibers[G->current];
#if MSL_TSAN
  // Two tags: a thread that leaves barrier i late must not acquire what others release at barrier i + 1.
  char* tag = &G->barrier_tag[G->barriers_passed & 1];
  __tsan_release(tag);
#endif
  if (G->at_barrier && G->barrier_site != site)
    error(G, "barrier divergence: thread %d at line %d, others at line %d", G->current, site, G->barrier_site);
  if (G->live != G->size)
    error(G, "barrier at line %d reached after %d of %d threads returned", site, G->size - G->live, G->size);
  G->barrier_site = site;
  me.state = AT_BARRIER;
  me.site = site;
  if (++G->at_barrier == G->live) {
    for (int i = 0; i < G->size; i++)
      if (G->fibers[i].state == AT_BARRIER) release(G, i);
    G->at_barrier = 0;
    G->barriers_passed++;
  } else block(G);
  if (G->failed) block(G);
#if MSL_TSAN
  __tsan_acquire(tag);
#endif
}

// ---------------------------------------------------------------- one threadgroup

static void fiber_main() {
  Group* G = group();
  G->entry(G->buffers, &G->fibers[G->current].context);
  G = group();
  Fiber& me = G->fibers[G->current];
  me.state = DONE;
  G->live--;
  Simdgroup& s = G->simdgroups[me.context.simdgroup];
  s.live &= ~(1u << me.context.lane);
  if (s.arrived)
    error(G, "thread %d returned while lanes of its simd-group wait at line %d", G->current, s.site);
  if (G->at_barrier)
    error(G, "thread %d returned while %d threads wait at the barrier at line %d", G->current, G->at_barrier,
          G->barrier_site);
#if MSL_TSAN
  __tsan_release(&G->end_tag);
#endif
  void* unused;
  switch_to(G, &unused, G->failed ? -1 : pop(G));
  abort();
}

#if MSL_ASAN
// Of an element in place, as in p[i].x, clang's own check of alignment sees nothing. To write one reads the vector too.
static void check_aligned(void* at, int bytes) {
  if ((size_t)at % (size_t)bytes) error(group(), "thread %d: misaligned access of %d bytes", group()->current, bytes);
}
extern "C" void __sanitizer_cov_load8(void* at) { check_aligned(at, 8); }
extern "C" void __sanitizer_cov_load16(void* at) { check_aligned(at, 16); }
#endif

static void start_fiber(Group& R, int i, const ThreadContext& context) {
  Fiber& f = R.fibers[i];
  f.state = RUNNING;
  f.context = context;
  // Stacks start at different offsets: the same ones would compete for the same cache sets.
  size_t offset = MSL_ASAN ? 0 : (i % 61) * 64 * 5;
  void** sp = (void**)(R.stacks + (size_t)(i + 1) * STACK - offset) - 1;
  *--sp = (void*)fiber_main; // entered with rsp % 16 == 8, as after a call
  for (int k = 0; k < 6; k++) *--sp = 0;
  f.stack_pointer = sp;
#if MSL_TSAN
  f.tsan = __tsan_create_fiber(0);
#endif
  push(&R, i);
}

static void explain_deadlock(Group& R) {
  int barrier = -1, simd = -1;
  for (int k = 0; k < R.size; k++) {
    if (R.fibers[k].state == AT_BARRIER) barrier = k;
    if (R.fibers[k].state == IN_COLLECTIVE) simd = k;
  }
  if (simd >= 0)
    error(&R, "simd-group divergence: thread %d waits at line %d, %d threads wait at a barrier (line %d)", simd,
          R.fibers[simd].site, R.at_barrier, R.barrier_site);
  else
    error(&R, "barrier divergence: %d of %d threads wait at line %d, the rest returned", R.at_barrier, R.size,
          barrier >= 0 ? R.fibers[barrier].site : -1);
}

static void run_group(Group& R, Uint3 at, Uint3 groups, const unsigned group_size[3]) {
  const unsigned* grid = R.options->grid;
  unsigned origin[3] = {at.x * group_size[0], at.y * group_size[1], at.z * group_size[2]}, size[3];
  for (int i = 0; i < 3; i++) { // Metal clips the last threadgroup
    unsigned rest = grid[i] - origin[i];
    size[i] = rest < group_size[i] ? rest : group_size[i];
  }
  int n = size[0] * size[1] * size[2], simdgroups = (n + 31) / 32;
  R.size = R.live = n;
  R.at_barrier = 0;
  R.head = R.queued = 0;
  if (MSL_ASAN)
    for (int k = 0; k < R.num_variables; k++) free(R.variables[k].memory);
  R.num_variables = 0;
  R.variable_bytes = 0;
  if ((int)R.fibers.size() < n) R.fibers.resize(n);
  R.simdgroups.resize(simdgroups);
  for (int i = 0; i < simdgroups; i++) {
    int lanes = n - i * 32;
    R.simdgroups[i].live = lanes >= 32 ? ~0u : (1u << lanes) - 1;
    R.simdgroups[i].arrived = 0;
    R.simdgroups[i].parity = 0;
  }
  // Under TSan fresh pages for every threadgroup: it takes a stack that two fibers used, one after the other, for a race,
  // and an order between them would hide races between threadgroups.
  if (MSL_TSAN || R.stack_bytes < n * STACK) {
    if (R.stacks) munmap(R.stacks, R.stack_bytes);
    R.stack_bytes = n * STACK;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    R.stacks = (char*)mmap(0, R.stack_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  }
  unsigned i = 0;
  for (unsigned z = 0; z < size[2]; z++)
    for (unsigned y = 0; y < size[1]; y++)
      for (unsigned x = 0; x < size[0]; x++, i++)
        start_fiber(R, i,
                    {{origin[0] + x, origin[1] + y, origin[2] + z},
                     {x, y, z},
                     at,
                     {size[0], size[1], size[2]},
                     {group_size[0], group_size[1], group_size[2]},
                     {grid[0], grid[1], grid[2]},
                     groups,
                     i % 32,
                     i / 32,
                     i,
                     (unsigned)simdgroups});
#if MSL_TSAN
  R.tsan_main = __tsan_get_current_fiber();
#endif
  switch_to(&R, &R.main_stack_pointer, pop(&R));
  if (!R.failed && R.live) explain_deadlock(R);
#if MSL_TSAN
  for (int k = 0; k < n; k++) __tsan_destroy_fiber(R.fibers[k].tsan);
#endif
}

// ---------------------------------------------------------------- the grid

// With a seed, threadgroups run in a scattered order: places i * step + start, step coprime to their number.
static size_t scattered(size_t i, size_t total, unsigned seed) {
  if (!seed) return i;
  size_t step = (seed * 2654435761u) % total;
  while (std::gcd(step, total) != 1) step++;
  return (i * step + seed) % total;
}

extern "C" int msl_run(Entry entry, void** buffers, Options* o) {
  unsigned size[3], groups[3];
  for (int i = 0; i < 3; i++) {
    size[i] = o->group[i] < o->grid[i] ? o->group[i] : o->grid[i];
    groups[i] = (o->grid[i] + size[i] - 1) / size[i];
  }
  o->error[0] = 0;
  o->group_bytes = 0;
  size_t total = (size_t)groups[0] * groups[1] * groups[2];
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  std::atomic<unsigned> most_bytes{0};
  auto work = [&](unsigned id) {
    Group* mine = new Group;
    Group& R = *mine;
    Options options = *o;
    R.entry = entry;
    R.buffers = buffers;
    R.options = &options;
    R.random = 2463534242u + o->seed * 7919u + id;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (MSL_TSAN) R.arena = (char*)mmap(0, 1ul << 30, PROT_READ | PROT_WRITE, flags, -1, 0);
    current_group = mine;
    for (size_t i; !failed && (i = next++) < total;) {
      size_t k = scattered(i, total, o->seed);
      Uint3 at = {unsigned(k % groups[0]), unsigned(k / groups[0] % groups[1]),
                  unsigned(k / groups[0] / groups[1])};
      run_group(R, at, {groups[0], groups[1], groups[2]}, size);
      if (R.failed && !failed.exchange(true)) memcpy(o->error, options.error, sizeof options.error);
    }
    for (unsigned seen = most_bytes; seen < options.group_bytes;)
      if (most_bytes.compare_exchange_weak(seen, options.group_bytes)) break;
#if MSL_TSAN
    __tsan_acquire(&R.end_tag);
#else
    if (R.stacks) munmap(R.stacks, R.stack_bytes);
    for (int k = 0; k < R.num_kept; k++) free(R.variables[k].memory);
    delete mine;
#endif
    current_group = nullptr;
  };
  if (o->os_threads <= 1) work(0);
  else {
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < o->os_threads; i++) threads.emplace_back(work, i);
    for (auto& t : threads) t.join();
  }
  o->group_bytes = most_bytes;
  return failed;
}
