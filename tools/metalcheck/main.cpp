// Runs a kernel in a process of its own, as the sanitizers need: main IN OUT (the file format is executor.py's).
#include <cstdint>
#include <cstdio>
#include <cstdlib>

extern "C" {
struct Options {
  unsigned grid[3], group[3];
  unsigned os_threads, seed;
  char error[512];
  unsigned group_bytes, max_group_bytes;
};
int msl_run(void (*)(void**, const void*), void**, Options*);
void msl_entry(void**, const void*);
}

static bool all(size_t done, size_t wanted) { return done == wanted; }

int main(int, char** argv) {
  FILE* in = fopen(argv[1], "rb");
  unsigned h[10]; // buffers, inputs among them, grid (3), threadgroup (3), seed, threadgroup memory limit
  if (!in || !all(fread(h, 4, 10, in), 10) || h[0] > 64) return 64;
  void* buffers[64];
  uint64_t bytes[64];
  for (unsigned i = 0; i < h[0]; i++) {
    uint64_t skipped; // bytes of a buffer before the array in it
    if (!all(fread(&bytes[i], 8, 1, in), 1) || !all(fread(&skipped, 8, 1, in), 1)) return 64;
    buffers[i] = (char*)malloc(skipped + bytes[i]) + skipped; // ends with the array: ASan sees one byte past it
    if (!all(fread(buffers[i], 1, bytes[i], in), bytes[i])) return 64;
  }
  fclose(in);
  Options o = {{h[2], h[3], h[4]}, {h[5], h[6], h[7]}, 1, h[8], {}, 0, h[9]};
  if (msl_run(msl_entry, buffers, &o)) {
    printf("KERNEL ERROR: %s\n", o.error);
    return 65;
  }
  FILE* out = fopen(argv[2], "wb");
  for (unsigned i = h[1]; i < h[0]; i++)
    if (!all(fwrite(buffers[i], 1, bytes[i], out), bytes[i])) return 64;
  return fclose(out);
}
