'use strict';
const figures = JSON.parse(document.getElementById('figures').textContent);
const DIGITS = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~';
const PAPER_PX = 660;  // what an A4 or letter page leaves between its margins

function coloured(value, style) {
  if (typeof value === 'string') {
    return value[0] === '$' ? style.getPropertyValue('--' + value.slice(1)).trim() || value : value;
  }
  if (Array.isArray(value)) return value.map(v => coloured(v, style));
  if (value && typeof value === 'object') {
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, coloured(v, style)]));
  }
  return value;
}

function draw(source, size) {
  const style = getComputedStyle(source);
  figures.forEach((figure, index) => {
    const place = document.getElementById('plot-' + index);
    const { data, layout } = coloured(figure, style);
    Plotly.react(place, data, { ...layout, ...size }, { responsive: true, displayModeBar: false });
  });
}

function unpacked(text) {  // base 85 as Python's b85encode writes it, with a comma for each `<`
  const value = new Uint8Array(128);
  [...DIGITS].forEach((digit, at) => { value[digit.charCodeAt(0)] = at; });
  const missing = (5 - text.length % 5) % 5;
  const whole = text + '~'.repeat(missing);
  const bytes = new DataView(new ArrayBuffer(whole.length / 5 * 4));
  for (let at = 0, to = 0; at < whole.length; to += 4) {
    let number = 0;
    for (const end = at + 5; at < end; at += 1) number = number * 85 + value[whole.charCodeAt(at)];
    bytes.setUint32(to, number);
  }
  return new Uint8Array(bytes.buffer, 0, bytes.byteLength - missing);
}

async function load() {  // the library that draws, which is packed so that the page is small
  const packed = new Blob([unpacked(document.getElementById('plotly').textContent)]);
  const library = document.createElement('script');
  library.textContent = await new Response(packed.stream().pipeThrough(new DecompressionStream('deflate'))).text();
  document.head.append(library);
}

const onScreen = () => draw(document.documentElement, { autosize: true });
load().then(() => {
  onScreen();
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', onScreen);
  addEventListener('beforeprint', () => draw(document.getElementById('on-paper'), { width: PAPER_PX }));
  addEventListener('afterprint', onScreen);
}).catch(error => {
  document.querySelectorAll('.plot').forEach(place => {
    place.textContent = 'This figure needs a browser of 2023 or later. (' + error + ')';
  });
});
