'use strict';
const figures = JSON.parse(document.getElementById('figures').textContent);
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

const onScreen = () => draw(document.documentElement, { autosize: true });
onScreen();
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', onScreen);
addEventListener('beforeprint', () => draw(document.getElementById('on-paper'), { width: PAPER_PX }));
addEventListener('afterprint', onScreen);
