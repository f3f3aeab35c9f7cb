#include "engine/report/page.h"

namespace dstrain::report {

// Colours of series: Okabe and Ito's palette, which people with any colour vision tell apart.
std::string_view page_style() {
  return R"css(
:root { color-scheme: light dark; --back: #fcfcfb; --text: #1d2126; --dim: #626a73; --rule: #dfe3e6; --card: #ffffff; --shade: rgba(0, 0, 0, .22);
  --c0: #0072b2; --c1: #e69f00; --c2: #009e73; --c3: #cc79a7; --c4: #56b4e9; --c5: #d55e00; --c6: #7a6f00; --c7: #8a8f94; }
@media (prefers-color-scheme: dark) {
  :root { --back: #14171a; --text: #e4e7ea; --dim: #9aa3ab; --rule: #2d3338; --card: #1b1f23; --shade: rgba(0, 0, 0, .7);
    --c0: #4aa8e0; --c1: #f0b53c; --c2: #2fc49b; --c3: #dd95bd; --c4: #8ccdf2; --c5: #f08048; --c6: #d8cd4a; --c7: #858c92; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text); font: 15px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1100px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 15px; font-weight: 500; color: var(--dim); margin: 0 0 6px; overflow-wrap: anywhere; }
p.lead { color: var(--text); font-size: 23px; line-height: 1.35; font-weight: 600; margin: 0 0 24px; overflow-wrap: anywhere; }
section { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 14px 18px 16px; margin: 14px 0; }
h2 { font-size: 17px; font-weight: 600; margin: 0 0 10px; overflow-wrap: anywhere; }
details > summary { cursor: pointer; } details > summary h2 { display: inline; }
p { margin: 8px 0; color: var(--dim); font-size: 13.5px; } ul { margin: 8px 0; padding-left: 20px; } li { margin: 4px 0; overflow-wrap: anywhere; }
/* A table that is wider than its card is scrolled; a shadow at the edge says that there is more. */
.wide { overflow-x: auto; margin: 8px 0; scrollbar-width: thin; background:
  linear-gradient(to right, var(--card) 30%, transparent) left / 40px 100% no-repeat local, linear-gradient(to left, var(--card) 30%, transparent) right / 40px 100% no-repeat local,
  linear-gradient(to right, var(--shade), transparent) left / 14px 100% no-repeat scroll, linear-gradient(to left, var(--shade), transparent) right / 14px 100% no-repeat scroll; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th { font-weight: 500; color: var(--dim); text-align: left; vertical-align: bottom; } td:first-child { color: var(--dim); }
th, td { padding: 4px 14px 4px 0; border-bottom: 1px solid var(--rule); max-width: 400px; overflow-wrap: break-word; }
th:first-child, td:first-child { position: sticky; left: 0; background: var(--card); } th:last-child, td:last-child { padding-right: 2px; } td[title] { overflow-wrap: anywhere; min-width: 190px; }
tr:last-child td { border-bottom: 0; } td.n, th.n { text-align: right; } td.n { white-space: nowrap; }
figure { margin: 14px 0 6px; } figcaption { font-size: 13.5px; font-weight: 600; margin-bottom: 2px; }
svg.chart { width: 100%; height: auto; display: block; } svg.chart:focus-visible, .key:focus-visible { outline: 2px solid var(--c0); outline-offset: 2px; }
.t { font-size: 11.5px; fill: var(--text); } .mid { text-anchor: middle; } .end { text-anchor: end; } .dim { fill: var(--dim); }
.grid { stroke: var(--rule); stroke-width: 1; } .pad { fill: transparent; } .key { cursor: pointer; } .key.off { opacity: .35; } .hidden { display: none; }
.lines path { fill: none; stroke-width: 1.6; stroke-linejoin: round; } .lines path.faint { stroke-opacity: .35; }
.s0 { stroke: var(--c0); } .s1 { stroke: var(--c1); } .s2 { stroke: var(--c2); } .s3 { stroke: var(--c3); }
.s4 { stroke: var(--c4); } .s5 { stroke: var(--c5); } .s6 { stroke: var(--c6); } .s7 { stroke: var(--c7); }
.f0 { fill: var(--c0); } .f1 { fill: var(--c1); } .f2 { fill: var(--c2); } .f3 { fill: var(--c3); }
.f4 { fill: var(--c4); } .f5 { fill: var(--c5); } .f6 { fill: var(--c6); } .f7 { fill: var(--c7); }
.heat-cell { fill: var(--c0); } .cursor { stroke: var(--dim); stroke-dasharray: 3 3; pointer-events: none; }
#tip { position: fixed; z-index: 2; pointer-events: none; background: var(--text); color: var(--back); font-size: 12.5px; line-height: 1.4; padding: 5px 9px;
  border-radius: 5px; white-space: pre-line; max-width: 320px; overflow-wrap: anywhere; display: none; }
footer { color: var(--dim); font-size: 12.5px; margin-top: 20px; }
@media (max-width: 520px) { main { padding: 18px 10px 40px; } section { padding: 12px; } p.lead { font-size: 19px; }
  figure { overflow-x: auto; } svg.chart { min-width: 560px; } td:first-child { min-width: 90px; } }
@media print { :root { color-scheme: light; --back: #fff; --card: #fff; --text: #000; --dim: #444; --rule: #ccc; } #tip { display: none !important; }
  main { max-width: none; padding: 0; } section { border: 0; padding: 6px 0; break-inside: auto; } figure, tr { break-inside: avoid; } .wide { overflow: visible; } }
)css";
}

std::string_view page_script() {
  return R"js(
'use strict';
const tip = document.getElementById('tip');
function show(text, x, y) {
  tip.textContent = text;
  tip.style.display = 'block';
  tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - tip.offsetWidth - 6)) + 'px';
  tip.style.top = Math.max(4, Math.min(y + 14, innerHeight - tip.offsetHeight - 6)) + 'px';
}
addEventListener('beforeprint', () => { for (const part of document.querySelectorAll('details')) part.open = true; });
function hide() { tip.style.display = 'none'; }
const format = v => Number(v.toPrecision(4)).toLocaleString('en-US', {maximumFractionDigits: 6});

for (const key of document.querySelectorAll('.key')) {
  const toggle = () => {
    const off = key.classList.toggle('off');
    key.setAttribute('aria-pressed', String(!off));
    const all = key.ownerSVGElement.querySelectorAll('[data-series="' + key.dataset.series + '"]:not(.key)');
    for (const part of all) part.classList.toggle('hidden', off);
  };
  key.addEventListener('click', toggle);
  key.addEventListener('keydown', e => { if (e.key === 'Enter' || e.key === ' ') { e.preventDefault(); toggle(); } });
}

for (const chart of document.querySelectorAll('svg.lines')) {
  const pad = chart.querySelector('.pad');
  const low = Number(pad.dataset.low), high = Number(pad.dataset.high);
  const lines = [...chart.querySelectorAll('.series')].map(g => {
    const n = g.dataset.points.trim().split(' ').map(Number), points = [];
    for (let i = 0; i < n.length; i += 2) points.push([n[i], n[i + 1]]);
    return {g, name: g.dataset.name, points};
  });
  const cursor = document.createElementNS('http://www.w3.org/2000/svg', 'line');
  cursor.setAttribute('class', 'cursor hidden');
  const left = Number(pad.getAttribute('x')), width = Number(pad.getAttribute('width')), top = Number(pad.getAttribute('y'));
  cursor.setAttribute('y1', top);
  cursor.setAttribute('y2', top + Number(pad.getAttribute('height')));
  chart.append(cursor);
  let share = 0.5;
  const at = (part, x, y) => {
    share = Math.min(1, Math.max(0, part));
    const value = low + share * (high - low);
    const rows = [];
    let nearest = value;
    for (const line of lines) {
      if (line.g.classList.contains('hidden')) continue;
      const best = line.points.reduce((a, b) => Math.abs(b[0] - value) < Math.abs(a[0] - value) ? b : a);
      if (rows.length === 0) nearest = best[0];
      rows.push(line.name + ': ' + format(best[1]));
    }
    const px = left + (nearest - low) / (high - low) * width;
    cursor.setAttribute('x1', px);
    cursor.setAttribute('x2', px);
    cursor.classList.remove('hidden');
    show(pad.dataset.label + ' ' + format(nearest) + '\n' + rows.join('\n'), x, y);
  };
  const leave = () => { hide(); cursor.classList.add('hidden'); };
  pad.addEventListener('pointermove', e => {
    const box = pad.getBoundingClientRect();
    at((e.clientX - box.left) / box.width, e.clientX, e.clientY);
  });
  pad.addEventListener('pointerleave', leave);
  chart.addEventListener('blur', leave);
  chart.addEventListener('keydown', e => {
    if (e.target !== chart || (e.key !== 'ArrowLeft' && e.key !== 'ArrowRight')) return;
    e.preventDefault();
    const box = pad.getBoundingClientRect();
    const next = share + (e.key === 'ArrowLeft' ? -0.02 : 0.02);
    at(next, box.left + next * box.width, box.top + 20);
  });
}

for (const chart of document.querySelectorAll('svg.bars, svg.heat, svg.timeline, svg.durations')) {
  chart.addEventListener('pointermove', e => {
    const title = e.target.tagName === 'rect' ? e.target.querySelector('title') || e.target.firstChild : null;
    if (e.target.tagName === 'rect' && !e.target.dataset.text && title) {
      e.target.dataset.text = title.textContent;  // the browser's own tooltip would come second
      title.remove();
    }
    if (e.target.tagName === 'rect' && e.target.dataset.text) show(e.target.dataset.text, e.clientX, e.clientY); else hide();
  });
  chart.addEventListener('pointerleave', hide);
}

for (const chart of document.querySelectorAll('svg.timeline')) {
  const view = chart.querySelector('.view');
  const full = view.viewBox.baseVal.width, height = view.viewBox.baseVal.height, end = Number(view.dataset.end) / 1e6;
  let from = 0, span = full;
  const draw = () => {
    span = Math.min(full, Math.max(full / 2000, span));
    from = Math.min(full - span, Math.max(0, from));
    view.setAttribute('viewBox', from + ' 0 ' + span + ' ' + height);
    chart.querySelector('.range-low').textContent = format(from / full * end) + ' ms';
    chart.querySelector('.range-high').textContent = format((from + span) / full * end) + ' ms';
  };
  const zoom = (factor, middle) => { from += span * middle * (1 - factor); span *= factor; draw(); };
  chart.addEventListener('wheel', e => {
    if (!e.ctrlKey && !e.shiftKey) return;
    e.preventDefault();
    const box = view.getBoundingClientRect();
    zoom(e.deltaY + e.deltaX < 0 ? 0.8 : 1.25, (e.clientX - box.left) / box.width);
  }, {passive: false});
  chart.addEventListener('dblclick', e => {
    const box = chart.getBoundingClientRect();
    zoom(0.5, (e.clientX - box.left) / box.width);
  });
  chart.addEventListener('keydown', e => {
    if (e.key === '+' || e.key === '=') zoom(0.7, 0.5);
    else if (e.key === '-') zoom(1 / 0.7, 0.5);
    else if (e.key === '0') { from = 0; span = full; draw(); }
    else if (e.key === 'ArrowLeft') { from -= span * 0.1; draw(); }
    else if (e.key === 'ArrowRight') { from += span * 0.1; draw(); }
    else return;
    e.preventDefault();
  });
}
)js";
}

}  // namespace dstrain::report
