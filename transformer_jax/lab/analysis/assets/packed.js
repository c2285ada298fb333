// Arrays that packed.py wrote: base64 of deflated bytes, all first bytes of the values, then all
// second ones, and so on.
"use strict";

const STORED_AS = { uint16: Uint16Array, int16: Int16Array, float32: Float32Array };

// {shape, values: Float32Array}, row by row as NumPy has them.
async function unpack(packed) {
  const planes = await inflate(Uint8Array.from(atob(packed.data), (c) => c.charCodeAt(0)));
  const Type = STORED_AS[packed.type];
  const bytes = new Uint8Array(planes.length);
  const count = planes.length / Type.BYTES_PER_ELEMENT;
  for (let plane = 0; plane < Type.BYTES_PER_ELEMENT; plane++) {
    for (let i = 0; i < count; i++) {
      bytes[i * Type.BYTES_PER_ELEMENT + plane] = planes[plane * count + i];
    }
  }
  const stored = new Type(bytes.buffer);
  const values = new Float32Array(count);
  for (let i = 0; i < count; i++) values[i] = stored[i] / packed.per;
  return { shape: packed.shape, values };
}

async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
