// The script of a page that `mlxsparse view` writes: draws its points or voxels and runs its controls.
// What the page holds is described in mlxsparse/viz/page.py. Nothing is loaded from anywhere else.
import { OrbitControls } from "three/addons/controls/OrbitControls.js";
import { MAPS, ramp } from "./colour.js";
import { Picture } from "./picture.js";

const $ = (id) => document.getElementById(id);
const thousands = (n) => n.toLocaleString("en");
// Rounded to so many digits after the point; "+ 0" as -0 is 0.
const short = (x, digits) => {
  const rounded = +x.toFixed(digits) + 0;
  return Number.isSafeInteger(rounded) ? thousands(rounded) : String(rounded);
};
const TYPES = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f4: Float32Array };

async function unpack() {
  const text = atob($("data").textContent.trim());
  const bytes = Uint8Array.from({ length: text.length }, (_, i) => text.charCodeAt(i));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

function controls(page, buffer) {
  const array = (c) => new TYPES[c.type](buffer, c.at, c.length);
  const positions = array(page.positions);
  const picture = new Picture($("canvas"), page, positions);
  // The fewer points, the larger: 2 to 8 pixels.
  const pixels = Math.max(2, Math.min(8, 2.5 * (50000 / page.count) ** 0.25));
  const state = { field: page.start, map: "viridis", size: page.kind === "points" ? pixels : 1, hidden: new Set() };
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
    if (name === "hide") value.split(",").forEach((v) => state.hidden.add(v));
    else if (name === "size") state.size = Number(value);
    else state[name] = value;
  }
  if (!page.fields.some((f) => f.name === state.field)) state.field = page.start;
  if (!(state.map in MAPS)) state.map = "viridis";

  // A field's number of row i, as in the file (others than whole ones rounded to float32).
  const reader = (f) => {
    if (f.axis !== undefined) return (i) => positions[3 * i + f.axis] + page.centre[f.axis];
    const values = array(f.values);
    return (i) => values[i] + f.base;
  };
  const fields = new Map(page.fields.map((f) => [f.name, { ...f, of: f.kind === "rgb" ? null : reader(f) }]));
  const classField = page.fields.find((f) => f.kind === "class");
  const classOf = classField && array(classField.values);

  function paint() {
    const field = fields.get(state.field);
    const tint = picture.tint;
    const n = page.count;
    if (field.kind === "rgb") {
      const rgb = array(field.values);
      for (let i = 0; i < n; i++) for (let c = 0; c < 3; c++) tint[4 * i + c] = rgb[3 * i + c];
    } else if (field.kind === "class") {
      const values = array(field.values);
      const colours = field.classes.map((c) => parseInt(c.colour.slice(1), 16));
      for (let i = 0; i < n; i++) {
        const c = colours[values[i]];
        tint[4 * i] = c >> 16; tint[4 * i + 1] = (c >> 8) & 255; tint[4 * i + 2] = c & 255;
      }
    } else {
      const table = ramp(state.map);
      const scale = 255 / (field.high - field.low || 1);
      for (let i = 0; i < n; i++) {
        const t = (field.of(i) - field.low) * scale;
        const k = Number.isNaN(t) ? 768 : 3 * Math.max(0, Math.min(255, Math.round(t)));
        for (let c = 0; c < 3; c++) tint[4 * i + c] = table[k + c];
      }
    }
    let shown = n;
    const hide = classField && classField.classes.map((c) => state.hidden.has(String(c.value)));
    for (let i = 0; i < n; i++) {
      const gone = hide && hide[classOf[i]];
      tint[4 * i + 3] = gone ? 0 : 255;
      if (gone) shown--;
    }
    picture.painted();
    const of = shown === n ? "" : ` of ${thousands(n)}`;
    $("shown").textContent = `${thousands(shown)}${of} ${page.kind} shown`;
    document.documentElement.dataset.shown = String(shown);
    legend(field);
  }

  function legend(field) {
    $("bar").hidden = field.kind !== "number";
    $("classes").hidden = field.kind !== "class";
    if (field.kind !== "number") return;
    const table = ramp(state.map);
    const stops = [0, 32, 64, 96, 128, 160, 192, 224, 255].map((k) => `rgb(${[...table.slice(3 * k, 3 * k + 3)]})`);
    $("gradient").style.background = `linear-gradient(90deg, ${stops})`;
    $("low").textContent = (field.clipped ? "≤ " : "") + short(field.low, field.digits);
    $("high").textContent = (field.clipped ? "≥ " : "") + short(field.high, field.digits);
  }

  // ---- the panel
  document.title = page.title;
  $("title").textContent = page.title;
  const labels = ["x", "y", "z"];
  $("bounds").append(...labels.map((axis, a) => {
    const row = document.createElement("tr");
    for (const text of [axis, page.low[a].toFixed(page.digits), page.high[a].toFixed(page.digits)]) {
      row.append(Object.assign(document.createElement("td"), { textContent: text }));
    }
    return row;
  }));
  const paragraph = (text) => Object.assign(document.createElement("p"), { textContent: text });
  $("notes").append(...page.notes.map(paragraph));
  $("constant").append(...page.constant.map(paragraph));
  $("constant").hidden = !page.constant.length;
  $("field").append(...page.fields.map((f) => new Option(f.label, f.name)));
  $("map").append(...Object.keys(MAPS).map((m) => new Option(m, m)));
  $("field").value = state.field;
  $("map").value = state.map;
  $("size").value = state.size;
  [$("size").min, $("size").max] = page.kind === "points" ? [1, 12] : [0.2, 1];
  $("size").value = state.size;
  $("size-label").textContent = page.kind === "points" ? "point size" : "cube size";
  $("field").onchange = (e) => { state.field = e.target.value; paint(); };
  $("map").onchange = (e) => { state.map = e.target.value; paint(); };
  $("size").oninput = (e) => picture.resizePoints(Number(e.target.value));
  $("shade").onchange = (e) => picture.shade(e.target.checked);
  $("box").onchange = (e) => picture.showBox(e.target.checked);
  $("light").onchange = (e) => picture.background(e.target.checked);
  document.querySelectorAll("[data-view]").forEach((b) => (b.onclick = () => picture.look(b.dataset.view)));
  if (classField) {
    const boxes = classField.classes.map((c) => {
      const box = Object.assign(document.createElement("input"), { type: "checkbox", checked: !state.hidden.has(String(c.value)) });
      box.onchange = () => { state.hidden[box.checked ? "delete" : "add"](String(c.value)); paint(); };
      const swatch = document.createElement("i");
      swatch.style.background = c.colour;
      const name = Object.assign(document.createElement("span"), { textContent: c.name });
      const count = Object.assign(document.createElement("b"), { textContent: thousands(c.count) });
      const row = document.createElement("label");
      row.append(box, swatch, name, count);
      $("rows").append(row);
      return box;
    });
    $("all").onclick = () => { const on = boxes.some((b) => !b.checked); boxes.forEach((b, k) => {
      b.checked = on;
      state.hidden[on ? "delete" : "add"](String(classField.classes[k].value));
    }); paint(); };
  }
  $("panel").hidden = false;
  $("fold").onclick = () => $("panel").classList.toggle("folded");

  // ---- a click tells what is under it, a double click turns about it
  function tell(event) {
    const i = picture.nearest(event.clientX, event.clientY);
    $("tip").hidden = i < 0;
    if (i < 0) return i;
    const rows = page.fields.map((f) => {
      const field = fields.get(f.name);
      if (field.kind === "rgb") return [f.name, [0, 1, 2].map((c) => array(field.values)[3 * i + c]).join(", ")];
      if (field.kind === "class") return [f.name, field.classes[array(field.values)[i]].name];
      return [f.name, field.axis === undefined ? short(field.of(i), field.digits) : field.of(i).toFixed(page.digits)];
    });
    $("tip").replaceChildren(...rows.map(([name, value]) => {
      const row = document.createElement("div");
      row.append(Object.assign(document.createElement("span"), { textContent: name }), Object.assign(document.createElement("b"), { textContent: value }));
      return row;
    }));
    return i;
  }
  let down = null;
  const canvas = $("canvas");
  canvas.addEventListener("pointerdown", (e) => { down = [e.clientX, e.clientY]; });
  canvas.addEventListener("pointerup", (e) => {
    if (down && Math.hypot(e.clientX - down[0], e.clientY - down[1]) < 4) tell(e);
  });
  canvas.addEventListener("dblclick", (e) => { const i = tell(e); if (i >= 0) picture.turnAbout(i); });

  picture.controls = new OrbitControls(picture.camera, canvas);
  picture.controls.zoomToCursor = true;
  picture.controls.addEventListener("start", () => { picture.view = null; });
  picture.controls.addEventListener("change", () => picture.draw());
  picture.resizePoints(state.size);
  if (state.light) { $("light").checked = true; picture.background(true); }
  picture.zoom = Number(state.zoom) || 1;
  picture.look(state.view || "home");
  paint();
}

async function main() {
  const page = JSON.parse($("page").textContent);
  try {
    controls(page, await unpack());
    document.documentElement.dataset.ready = "true";
  } catch (error) {
    const webgl = !document.createElement("canvas").getContext("webgl2");
    $("failure").textContent = webgl ? "This page draws with WebGL 2, which this browser does not offer." : `The page could not be drawn: ${error.message}`;
    $("failure").hidden = false;
    document.documentElement.dataset.ready = "failed";
    throw error;
  }
}
main();
