// What is drawn: points as discs or voxels as cubes, shaded by depth, with a bounding box and an axis cross.
import * as THREE from "three";

const POINTS = {
  vertexShader: `
    attribute vec4 tint; uniform float size; uniform float reach; varying vec3 colour;
    void main() {
      vec4 eye = modelViewMatrix * vec4(position, 1.0);
      colour = tint.rgb;
      gl_Position = tint.a < 0.5 ? vec4(2.0, 2.0, 2.0, 1.0) : projectionMatrix * eye;
      gl_PointSize = size * clamp(reach / -eye.z, 0.7, 12.0);
    }`,
  fragmentShader: `
    varying vec3 colour;
    void main() {
      if (length(gl_PointCoord - 0.5) > 0.5) discard;
      gl_FragColor = vec4(colour, 1.0);
    }`,
};

const CUBES = {
  vertexShader: `
    attribute vec3 middle; attribute vec4 tint; uniform float size; uniform vec3 edge; varying vec3 colour; varying vec2 face;
    void main() {
      face = uv;
      vec3 at = middle + position * edge * size;
      float light = dot(abs(normal), vec3(0.84, 0.72, 1.0)) - (normal.z < 0.0 ? 0.4 : 0.0);
      colour = tint.rgb * light;
      gl_Position = tint.a < 0.5 ? vec4(2.0, 2.0, 2.0, 1.0) : projectionMatrix * modelViewMatrix * vec4(at, 1.0);
    }`,
  // Edges one pixel wide, which fade where a cube is only a few pixels across.
  fragmentShader: `
    varying vec3 colour; varying vec2 face;
    void main() {
      vec2 wide = fwidth(face);
      vec2 inside = smoothstep(vec2(0.0), 1.2 * wide, min(face, 1.0 - face));
      float line = (1.0 - min(inside.x, inside.y)) * (1.0 - smoothstep(0.08, 0.35, max(wide.x, wide.y)));
      gl_FragColor = vec4(colour * (1.0 - 0.45 * line), 1.0);
    }`,
};

// Eye-dome lighting (Boucheny 2009): a pixel is darkened by how far its neighbours stand in front of it.
const SHADE = {
  vertexShader: "varying vec2 uv2; void main() { uv2 = uv; gl_Position = vec4(position.xy, 0.0, 1.0); }",
  fragmentShader: `
    varying vec2 uv2; uniform sampler2D colours, depths; uniform vec2 pixel; uniform float near, far, strength;
    float logDepth(vec2 at) {
      float d = texture2D(depths, at).x;
      return log2(near * far / (far - d * (far - near)));
    }
    void main() {
      vec4 colour = texture2D(colours, uv2);
      float here = logDepth(uv2), sum = 0.0;
      for (int k = 0; k < 8; k++) {
        float angle = 0.785398 * float(k);
        sum += max(0.0, here - logDepth(uv2 + pixel * vec2(cos(angle), sin(angle))));
      }
      bool empty = texture2D(depths, uv2).x >= 1.0;
      gl_FragColor = vec4(empty ? colour.rgb : colour.rgb * exp(-strength * min(sum / 8.0, 0.25)), 1.0);
    }`,
};

THREE.ColorManagement.enabled = false;
const PANEL = 276; // pixels that the panel covers on the left

export class Picture {
  constructor(canvas, page, positions) {
    this.page = page;
    this.positions = positions;
    this.tint = new Uint8Array(4 * page.count);
    this.renderer = new THREE.WebGLRenderer({ canvas, preserveDrawingBuffer: true });
    this.renderer.outputColorSpace = THREE.LinearSRGBColorSpace; // colours go to the screen as they are
    this.camera = new THREE.PerspectiveCamera(45, 1, 0.1, 1000);
    this.camera.up.set(0, 0, 1);
    this.scene = new THREE.Scene();
    const tints = new THREE.BufferAttribute(this.tint, 4, true);
    if (page.kind === "points") {
      this.material = new THREE.ShaderMaterial({ ...POINTS, uniforms: { size: { value: 2 }, reach: { value: 1 } } });
      const geometry = new THREE.BufferGeometry();
      geometry.setAttribute("position", new THREE.BufferAttribute(positions, 3));
      geometry.setAttribute("tint", tints);
      this.object = new THREE.Points(geometry, this.material);
    } else {
      const edge = new THREE.Vector3(...page.voxel);
      this.material = new THREE.ShaderMaterial({ ...CUBES, uniforms: { size: { value: 1 }, edge: { value: edge } } });
      const geometry = new THREE.InstancedBufferGeometry().copy(new THREE.BoxGeometry(1, 1, 1));
      geometry.instanceCount = page.count;
      geometry.setAttribute("middle", new THREE.InstancedBufferAttribute(positions, 3));
      const own = new THREE.InstancedBufferAttribute(this.tint, 4, true);
      geometry.setAttribute("tint", own);
      this.instanced = own;
      this.object = new THREE.Mesh(geometry, this.material);
    }
    this.tints = this.instanced || tints;
    this.object.frustumCulled = false;
    this.scene.add(this.object);

    const low = new THREE.Vector3(...page.low.map((v, a) => v - page.centre[a]));
    const high = new THREE.Vector3(...page.high.map((v, a) => v - page.centre[a]));
    this.bounds = new THREE.Box3(low, high);
    this.box = new THREE.Box3Helper(this.bounds, 0x808890);
    this.box.visible = false;
    this.scene.add(this.box);
    // The view is fitted to where most points are, so that a stray one does not make the rest tiny.
    this.focus = new THREE.Box3(new THREE.Vector3(...page.focus[0]), new THREE.Vector3(...page.focus[1]));
    const spread = Math.max(this.focus.getSize(new THREE.Vector3()).length() / 2, 1e-3 * this.bounds.getSize(new THREE.Vector3()).length());
    this.radius = Math.max(spread || 0.5, 1e-6); // points at one place have no spread

    this.target = new THREE.WebGLRenderTarget(1, 1, { depthTexture: new THREE.DepthTexture(1, 1, THREE.FloatType) });
    this.target.texture.minFilter = this.target.texture.magFilter = THREE.NearestFilter;
    const one = (value) => ({ value });
    this.effect = new THREE.ShaderMaterial({
      ...SHADE, depthTest: false, depthWrite: false,
      uniforms: { colours: one(this.target.texture), depths: one(this.target.depthTexture), pixel: one(new THREE.Vector2()),
        near: one(1), far: one(2), strength: one(26) },
    });
    this.flat = new THREE.Scene();
    this.flat.add(new THREE.Mesh(new THREE.PlaneGeometry(2, 2), this.effect));
    this.still = new THREE.Camera();
    this.background(false);
    addEventListener("resize", () => (this.view ? this.look(this.view) : this.draw()));
  }

  draw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.render(); });
  }

  render() {
    const [width, height] = [innerWidth, innerHeight];
    const ratio = Math.min(devicePixelRatio || 1, 2);
    if (width !== this.width || height !== this.height || ratio !== this.ratio) {
      Object.assign(this, { width, height, ratio });
      this.renderer.setPixelRatio(ratio);
      this.renderer.setSize(width, height);
      this.target.setSize(width * ratio, height * ratio);
      this.camera.aspect = width / height;
      this.camera.setViewOffset(width, height, -this.covered() / 2, 0, width, height);
    }
    // Near and far hug the cloud: a depth of 24 bits then resolves what the shading needs.
    const sphere = this.bounds.getBoundingSphere(new THREE.Sphere());
    const away = this.camera.position.distanceTo(sphere.center);
    const around = (sphere.radius || this.radius) * 1.01;
    this.camera.far = away + around;
    this.camera.near = Math.max(away - around, this.camera.far / 5000);
    this.camera.updateProjectionMatrix();
    if (this.material.uniforms.reach) this.material.uniforms.reach.value = this.reach;
    this.material.uniforms.size.value = this.size * (this.page.kind === "points" ? ratio : 1);
    const u = this.effect.uniforms;
    u.near.value = this.camera.near;
    u.far.value = this.camera.far;
    u.pixel.value.set(1.4 / width, 1.4 / height);
    this.renderer.setRenderTarget(this.target);
    this.renderer.render(this.scene, this.camera);
    this.renderer.setRenderTarget(null);
    this.renderer.render(this.flat, this.still);
    this.cross();
  }

  painted() {
    this.tints.needsUpdate = true;
    this.draw();
  }

  resizePoints(size) { this.size = size; this.draw(); }
  shade(on) { this.effect.uniforms.strength.value = on ? 26 : 0; this.draw(); }
  showBox(on) { this.box.visible = on; this.draw(); }

  background(light) {
    this.renderer.setClearColor(light ? 0xf4f5f7 : 0x15181d);
    document.body.classList.toggle("light", light);
    this.draw();
  }

  // Width beside which the cloud is centred: the panel's, where the window is wide enough for both.
  covered() { return innerWidth > 3 * PANEL ? PANEL : 0; }

  // Look from a side: "home" (from above and aside), "top", "front", "side".
  look(view) {
    this.view = view; // until the user turns it away
    const way = { top: [0, -1e-4, 1], front: [0, -1, 0.05], side: [1, 0, 0.05] }[view] || [-0.62, -0.78, 0.62];
    const middle = this.focus.getCenter(new THREE.Vector3());
    const direction = new THREE.Vector3(...way).normalize();
    // The distance at which the eight corners of the focus fit the window, beside the panel.
    const aspect = (innerWidth - this.covered()) / innerHeight;
    const up = Math.tan((this.camera.fov * Math.PI) / 360);
    const right = new THREE.Vector3().crossVectors(this.camera.up, direction).normalize();
    const above = new THREE.Vector3().crossVectors(direction, right);
    let away = this.radius * 0.2;
    for (let k = 0; k < 8; k++) {
      const corner = new THREE.Vector3(
        k & 1 ? this.focus.max.x : this.focus.min.x, k & 2 ? this.focus.max.y : this.focus.min.y,
        k & 4 ? this.focus.max.z : this.focus.min.z).sub(middle);
      const forward = corner.dot(direction);
      away = Math.max(away, forward + Math.abs(corner.dot(above)) / (0.94 * up), forward + Math.abs(corner.dot(right)) / (0.94 * up * aspect));
    }
    this.reach = away;
    away /= this.zoom || 1;
    this.camera.position.copy(middle).addScaledVector(direction, away);
    this.camera.lookAt(middle);
    if (this.controls) { this.controls.target.copy(middle); this.controls.update(); }
    this.draw();
  }

  turnAbout(i) {
    this.controls.target.set(...this.positions.slice(3 * i, 3 * i + 3));
    this.controls.update();
    this.draw();
  }

  // The row drawn nearest to the viewer within 8 pixels of the window's (x, y); -1 if there is none.
  nearest(x, y) {
    const matrix = new THREE.Matrix4().multiplyMatrices(this.camera.projectionMatrix, this.camera.matrixWorldInverse);
    const m = matrix.elements, p = this.positions;
    let best = -1, depth = Infinity;
    for (let i = 0; i < this.page.count; i++) {
      if (!this.tint[4 * i + 3]) continue;
      const [a, b, c] = [p[3 * i], p[3 * i + 1], p[3 * i + 2]];
      const w = m[3] * a + m[7] * b + m[11] * c + m[15];
      if (w <= 0 || w >= depth) continue;
      const u = ((m[0] * a + m[4] * b + m[8] * c + m[12]) / w + 1) * 0.5 * innerWidth - x;
      const v = (1 - (m[1] * a + m[5] * b + m[9] * c + m[13]) / w) * 0.5 * innerHeight - y;
      if (u * u + v * v < 64) { best = i; depth = w; }
    }
    return best;
  }

  // The directions of x, y and z, in the corner.
  cross() {
    const canvas = document.getElementById("cross");
    const pen = canvas.getContext("2d");
    pen.clearRect(0, 0, 88, 88);
    pen.font = "12px system-ui, sans-serif";
    pen.lineWidth = 2;
    const turn = new THREE.Matrix3().setFromMatrix4(this.camera.matrixWorldInverse);
    const axes = ["x", "y", "z"].map((name, a) => [name, ["#e5484d", "#30a46c", "#4c8dff"][a], new THREE.Vector3().setComponent(a, 1).applyMatrix3(turn)]);
    axes.sort((p, q) => p[2].z - q[2].z);
    for (const [name, colour, v] of axes) {
      pen.strokeStyle = pen.fillStyle = colour;
      pen.beginPath();
      pen.moveTo(44, 44);
      pen.lineTo(44 + 28 * v.x, 44 - 28 * v.y);
      pen.stroke();
      pen.fillText(name, 41 + 37 * v.x, 48 - 37 * v.y);
    }
  }
}
