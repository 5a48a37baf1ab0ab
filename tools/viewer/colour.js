// Colour maps, from equally spaced stops. viridis, magma and cividis: CC0, by Smith, van der Walt, Nuñez et al.
export const MAPS = {
  viridis: ["440154", "472d7b", "3b528b", "2c728e", "21918c", "28ae80", "5ec962", "addc30", "fde725"],
  magma: ["000004", "1d1147", "51127c", "832681", "b73779", "e75263", "fc8961", "fec488", "fcfdbf"],
  cividis: ["00224e", "1a386f", "434e6c", "61656f", "7d7c78", "9b9476", "bcae6c", "dec958", "fee838"],
  grey: ["202020", "ffffff"],
};

const NOT_A_NUMBER = [110, 110, 120];

// 256 colours of a map as one row of bytes, and after them the colour of NaN.
export function ramp(name) {
  const stops = MAPS[name].map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  const table = new Uint8Array(3 * 257);
  for (let k = 0; k < 256; k++) {
    const t = (k / 255) * (stops.length - 1);
    const i = Math.min(Math.floor(t), stops.length - 2);
    for (let c = 0; c < 3; c++) table[3 * k + c] = Math.round(stops[i][c] + (t - i) * (stops[i + 1][c] - stops[i][c]));
  }
  table.set(NOT_A_NUMBER, 768);
  return table;
}
