"""The look of a page and the script that draws its figures; both travel inside the page."""

from __future__ import annotations

STYLE = """
:root, .paper {
  --bg: #ffffff; --fg: #1c2430; --muted: #667080; --grid: #e3e7ec; --panel: #f6f7f9;
  --hatch: rgba(255,255,255,.5);
  --accent: #1f5fae; --accent-soft: rgba(31,95,174,.24);
  --second: #b3570a; --second-soft: rgba(179,87,10,.22);
  --third: #5d4a9c; --third-soft: rgba(93,74,156,.2);
  --fourth: #26734f; --fourth-soft: rgba(38,115,79,.2);
  --ideal: #aeb6c0; --loss: #c2483b; --gain: #2f8560;
  --input: #8a93a0; --forward: #8fb8e6; --backward: #2c6bb3; --compute: #2c6bb3; --optimizer: #5d4a9c;
  --exposed-transfer: #d9772b; --exposed-skew: #b23a55; --host: #56606d; --bucket: #e0a458;
  --on-input: #fff; --on-forward: #12263c; --on-backward: #fff; --on-compute: #fff; --on-optimizer: #fff;
  --on-exposed-transfer: #2a1402; --on-exposed-skew: #fff; --on-host: #fff; --on-bucket: #2a1a02;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --bg: #14181e; --fg: #e4e8ee; --muted: #98a2b0; --grid: #2b323c; --panel: #1c222a;
    --hatch: rgba(20,24,30,.45);
    --accent: #6aa9f0; --accent-soft: rgba(106,169,240,.28);
    --second: #eda35a; --second-soft: rgba(237,163,90,.26);
    --third: #a99be0; --third-soft: rgba(169,155,224,.26);
    --fourth: #5dbb8f; --fourth-soft: rgba(93,187,143,.26);
    --ideal: #5b6572; --loss: #e0766a; --gain: #5dbb8f;
    --input: #7c8795; --forward: #a5c8f0; --backward: #4a86cc; --compute: #4a86cc; --optimizer: #9284cf;
    --exposed-transfer: #e58c45; --exposed-skew: #d4637d; --host: #5f6a78; --bucket: #dcae70;
    --on-input: #10151b; --on-optimizer: #10151b; --on-backward: #fff; --on-exposed-skew: #1d070d;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--fg);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1060px; margin: 0 auto; padding: 48px 24px 64px; overflow-wrap: anywhere; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0; letter-spacing: -.015em; }
h2 { font-size: 1.2rem; margin: 0 0 12px; letter-spacing: -.005em; }
h3 { font-size: 1rem; margin: 0 0 4px; }
h4 { font-size: .8rem; margin: 14px 0 4px; color: var(--muted); }
section { margin-top: 52px; }
.about { margin: 6px 0 0; color: var(--muted); }
.badge { color: var(--second); font-size: .85em; letter-spacing: .03em; margin-right: .5em; }
.answer { font-size: 1.3rem; line-height: 1.45; margin: 28px 0 0; padding-left: 18px;
  border-left: 4px solid var(--accent); max-width: 46em; text-wrap: pretty; }
.answer.bad { border-color: var(--loss); }
.note, figcaption, .sure { color: var(--muted); font-size: .85rem; }
.note { margin: 8px 0 0; }
.reached { margin-left: 22px; }
nav ul { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 18px;
  padding: 0; margin: 28px 0 0; font-size: .85rem; }
nav li, nav li + li { margin: 0; }
a { color: var(--accent); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
figure { margin: 0; min-width: 0; }
figure + figure { margin-top: 32px; }
figcaption { margin-top: 6px; }
.pair { display: grid; gap: 36px 40px;
  grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); }
ul + .pair, .note + .pair, .note + figure, figure + .pair { margin-top: 28px; }
.pair figure + figure { margin-top: 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; width: 100%; }
th, td { text-align: right; padding: 7px 12px; white-space: nowrap; font-weight: 400; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
th:last-child, td:last-child { padding-right: 0; }
thead th { font-weight: 600; vertical-align: top; }
thead > tr > * { border-bottom: 1px solid var(--muted); }
thead small { display: block; font-weight: 400; color: var(--muted); }
th:first-child { position: sticky; left: 0; background: var(--bg); }
tbody tr + tr > * { border-top: 1px solid var(--grid); }
ul { margin: 8px 0; padding-left: 1.2em; }
li + li { margin-top: 4px; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 18px; padding: 0; font-size: .82rem; }
.legend li { margin: 0; white-space: nowrap; }
.legend i { display: inline-block; width: 13px; height: 13px; margin-right: 6px; vertical-align: -2px;
  background-color: var(--hue); print-color-adjust: exact; }
.input { --hue: var(--input); background-image: radial-gradient(var(--hatch) 1px, transparent 1.3px);
  background-size: 5px 5px; }
.forward { --hue: var(--forward); }
.backward { --hue: var(--backward); }
.compute { --hue: var(--compute); }
.bucket { --hue: var(--bucket); }
.exposed-transfer { --hue: var(--exposed-transfer);
  background-image: repeating-linear-gradient(135deg, var(--hatch) 0 1px, transparent 1px 5px); }
.exposed-skew { --hue: var(--exposed-skew);
  background-image: repeating-linear-gradient(45deg, var(--hatch) 0 1px, transparent 1px 5px),
    repeating-linear-gradient(135deg, var(--hatch) 0 1px, transparent 1px 5px); }
.optimizer { --hue: var(--optimizer);
  background-image: repeating-linear-gradient(0deg, var(--hatch) 0 1px, transparent 1px 4px); }
.host { --hue: var(--host);
  background-image: repeating-linear-gradient(90deg, var(--hatch) 0 1px, transparent 1px 4px); }
time { white-space: nowrap; }
.warnings { list-style: none; padding: 10px 16px;
  border-left: 4px solid var(--second); background: var(--panel); }
.card { background: var(--panel); border: 1px solid var(--grid); border-radius: 8px; padding: 16px 20px; }
.card + .card { margin-top: 16px; }
code { font: .9em/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { margin: 4px 0 0; white-space: pre-wrap; color: var(--muted); }
.words th, .words td { text-align: left; white-space: normal; vertical-align: top; }
.words th:first-child, .words td:last-child { white-space: nowrap; }
details { margin-top: 14px; }
summary { cursor: pointer; color: var(--muted); font-size: .9rem; }
details .wide { margin-top: 8px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 5px 24px; margin: 0; }
dt { color: var(--muted); }
dd { margin: 0; min-width: 0; }
@media (max-width: 600px) {
  tbody th:first-child { white-space: normal; min-width: 4em; max-width: 9em; }
  main { padding: 28px 16px 40px; }
  h1 { font-size: 1.4rem; }
  table { font-size: .84rem; }
  th, td { padding: 6px 7px; }
  .answer { font-size: 1.1rem; padding-left: 14px; }
  section { margin-top: 40px; }
  .card { padding: 14px 16px; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: 8px; }
}
@media print {
  nav { display: none; }
  details > :not(summary) { display: block; }
  main { max-width: none; padding: 0; }
  .pair { display: block; }
  table { font-size: .72rem; }
  th, td { padding: 4px 6px; }
  .pair figure + figure { margin-top: 24px; }
  figure, .card, table { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  section { margin-top: 28px; }
}
"""
"""Every colour of the figures is a variable here; `.paper` keeps the light ones at hand for printing."""

SCRIPT = """
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
"""
