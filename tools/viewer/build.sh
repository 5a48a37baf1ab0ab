#!/usr/bin/env bash
# Makes mlxsparse/viz/viewer.min.js from the scripts here and three.js again. Needs node and npm; users never run it.
# The first line of the result names the sources that it was made from; tests/viz compares it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
out=../../mlxsparse/viz
npm ci --silent
sources=$(cat package.json viewer.js picture.js colour.js | sha256sum | cut -c1-16)
npm run --silent build -- --banner:js="// sources $sources"
{
  echo "viewer.min.js holds three.js $(sed -n 's/.*"version": "\(.*\)".*/\1/p' node_modules/three/package.json)" \
    "(https://threejs.org), bundled with esbuild, under this licence:"
  echo
  cat node_modules/three/LICENSE
} >$out/three.LICENSE.txt
if grep -qi '</script' $out/viewer.min.js; then
  echo "the bundle holds </script and cannot stand in a page" >&2
  exit 1
fi
