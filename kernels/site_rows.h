// Rows of coordinates (batch, x, y, z): 16 bytes at once where they are aligned.
#ifndef MLXSPARSE_SITE_ROWS
#define MLXSPARSE_SITE_ROWS
METAL_FUNC bool sites_aligned(const device int* coords) { return (size_t(coords) & 15) == 0; }

METAL_FUNC void load_site(const device int* coords, size_t row, bool wide, thread int* site) {
  if (wide) {
    uint4 q = *(const device uint4*)(coords + 4 * row);
    site[0] = int(q.x);
    site[1] = int(q.y);
    site[2] = int(q.z);
    site[3] = int(q.w);
  } else {
    for (int a = 0; a < 4; a++) site[a] = coords[4 * row + size_t(a)];
  }
}
#endif
