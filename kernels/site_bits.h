// Sets of sites as bits over a box: site (b, x, y, z) has the number ((b * Sx + x - lx) * Sy + y - ly) * Sz + z - lz, below
// 2^31, so that numbers sort as sites. Of each 256 bits `before` holds the ones before them in their 65536, and `ends`
// the ones up to the end of each 65536.
#ifndef MLXSPARSE_SITE_BITS
#define MLXSPARSE_SITE_BITS
METAL_FUNC int floor_quotient(int c, int s) {
  int q = c / s;
  return c - q * s < 0 ? q - 1 : q;
}

// Where the taps lead from coordinate c along one axis. forward: every o with o * s = c + p - k * d; else c * s - p + k * d.
// first: where a tap 0 that divides would lead; rest: what it lacks. One division for all taps. The taps to try are
// start, start + next, ...: with d = 1 those that divide.
METAL_FUNC void taps_lead(
    int c, int s, int p, int d, bool forward, thread long& first, thread int& rest, thread int& start, thread int& next) {
  first = long(c) * long(s) - long(p);
  rest = 0;
  if (forward) {
    long reach = long(c) + long(p);
    int near = int(reach);
    if (long(near) == reach) {
      int q = floor_quotient(near, s);
      first = long(q);
      rest = near - q * s;
    } else { // long divisions are slow
      first = reach / long(s);
      rest = int(reach - first * long(s));
      if (rest < 0) {
        rest += s;
        first -= 1l;
      }
    }
  }
  bool known = forward && d == 1;
  start = known ? rest : 0;
  next = known ? min(s, 1 << 30) : 1; // no tap is beyond
}

// Where tap k leads, false where nowhere or outside [0, bound); bound 0: no bound. k * d stays below 2^30.
METAL_FUNC bool tap_leads(long first, int rest, int k, int s, int d, bool forward, int bound, thread long& v) {
  int far = k * d - rest, steps = forward ? far / s : 0;
  v = forward ? first - long(steps) : first + long(far);
  return (!forward || steps * s == far) && (bound == 0 || (v >= 0l && v < long(bound)));
}

// The number of a site, 2^32 - 1 outside the box or outside (-2^30, 2^30).
METAL_FUNC uint site_number(int b, long x, long y, long z, const thread int* low, const thread int* span, uint cells) {
  long site[3];
  site[0] = x;
  site[1] = y;
  site[2] = z;
  bool inside = b >= 0;
  ulong number = ulong(b);
  for (int a = 0; a < 3; a++) {
    long place = site[a] - long(low[a]);
    inside = inside && site[a] > -1073741824l && site[a] < 1073741824l && place >= 0l && place < long(span[a]);
    number = number * ulong(span[a]) + ulong(place);
  }
  return inside && number < ulong(cells) ? uint(number) : 4294967295u;
}

// Place of a number among the ones that are set, -1 where it is not set. Numbers must be below the cells.
METAL_FUNC int bit_rank(const device uint* bits, const device int* before, const device int* ends, uint number) {
  uint word = number >> 5, block = number >> 8;
  uint found = bits[word], mine = 1u << (number & 31u);
  int rank = -1;
  if ((found & mine) != 0u) {
    rank = before[block] + int(popcount(found & (mine - 1u)));
    if (block >= 256u) rank += ends[(block >> 8) - 1u];
    for (uint w = block * 8u; w < word; w++) rank += int(popcount(bits[w]));
  }
  return rank;
}
#endif
