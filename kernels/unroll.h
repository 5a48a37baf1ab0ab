#ifndef TILE_UNROLL // CUDA has its own: tile.cuh
#define TILE_UNROLL _Pragma("clang loop unroll(full)")
#define TILE_ROLLED _Pragma("clang loop unroll(disable)") // the rare way: short rather than fast
#endif
