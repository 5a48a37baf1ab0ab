// Types of runtime.cpp, and the x86-64 code that switches from one fiber to another.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <sys/mman.h>
#include <thread>
#include <vector>

#ifndef MSL_TSAN
#define MSL_TSAN 0
#endif
#ifndef MSL_ASAN
#define MSL_ASAN 0
#endif
#ifndef __x86_64__
#error "the executor switches fibers with x86-64 code"
#endif

extern "C" {
void* __tsan_create_fiber(unsigned);
void __tsan_destroy_fiber(void*);
void __tsan_switch_to_fiber(void*, unsigned);
void* __tsan_get_current_fiber();
void __tsan_acquire(void*);
void __tsan_release(void*);

struct Uint3 {
  unsigned x, y, z, _;
};
// Mirrored in source.py (kernel arguments), main.cpp and executor.py (options).
struct ThreadContext {
  Uint3 in_grid, in_group, group, group_size, dispatch_size, grid, groups;
  unsigned lane, simdgroup, index, simdgroups;
};
typedef void (*Entry)(void** buffers, const ThreadContext*);
struct Options {
  unsigned grid[3], group[3];
  unsigned os_threads, seed;
  char error[512];
  unsigned group_bytes, max_group_bytes; // threadgroup memory used, allowed
};
void msl_switch(void** save, void* to);
}
asm(R"(
.text
.globl msl_switch
.type msl_switch,@function
msl_switch:
 pushq %rbp
 pushq %rbx
 pushq %r12
 pushq %r13
 pushq %r14
 pushq %r15
 movq %rsp,(%rdi)
 movq %rsi,%rsp
 popq %r15
 popq %r14
 popq %r13
 popq %r12
 popq %rbx
 popq %rbp
 ret
)");

static const unsigned MAX_THREADS = 1024; // of a threadgroup
static const size_t STACK = MSL_ASAN ? 256 << 10 : 64 << 10;
enum State { RUNNING, AT_BARRIER, IN_COLLECTIVE, DONE };

struct Fiber {
  void* stack_pointer;
  ThreadContext context;
  State state;
  int site; // line of the barrier or collective it waits at
  void* tsan;
};
struct alignas(16) Slot {
  unsigned char bytes[32];
};
struct Simdgroup {
  Slot slots[2][32]; // of the current collective and the one before, whose values late lanes still read
  unsigned live, arrived, mask;
  int parity, site;
  char tag[2];
};
struct GroupVariable {
  void* memory;
  int line;
  size_t capacity;
};

struct Group {
  Entry entry;
  void** buffers;
  Options* options;
  std::vector<Fiber> fibers;
  std::vector<Simdgroup> simdgroups;
  int queue[MAX_THREADS]; // ring of runnable fibers; one is queued at most once
  unsigned head = 0, queued = 0;
  int size = 0, live = 0, current = -1;
  int at_barrier = 0, barrier_site = 0;
  unsigned barriers_passed = 0;
  bool failed = false;
  unsigned random;
  void* main_stack_pointer = nullptr;
  char* stacks = nullptr;
  size_t stack_bytes = 0;
  GroupVariable variables[64];
  int num_variables = 0, num_kept = 0;
  unsigned variable_bytes = 0;
  char* arena = nullptr;
  void* tsan_main = nullptr;
  char barrier_tag[2] = {0, 0}, end_tag = 0;
};

static thread_local Group* current_group;
// Fibers may move between OS threads as far as the compiler knows: read the variable anew at every use.
__attribute__((noinline)) static Group* group() {
  asm volatile("");
  return current_group;
}

static unsigned next_random(Group* G) {
  G->random ^= G->random << 13;
  G->random ^= G->random >> 17;
  G->random ^= G->random << 5;
  return G->random;
}

static void error(Group* G, const char* format, int a, int b = 0, int c = 0, int d = 0) {
  if (G->failed) return;
  snprintf(G->options->error, sizeof G->options->error, format, a, b, c, d);
  G->failed = true;
}
