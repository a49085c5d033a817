// The page of `tlaunch report --live`. A request for changes is answered once there are some. Texts of the run become text
// nodes, never markup.
"use strict";

const MAX_LINES = 5000; // of a log
const RETRY_MS = 3000;
const byId = (id) => document.getElementById(id);
const page = Math.random().toString(36).slice(2); // an ID: the server waits until each open page has the end of the run
const parts = new Map();
let seen = 0; // number of the last update
let each = null; // whether each rank has a row; null until the number of ranks is known
let rank = null; // whose log is shown
let chosen = false; // whether the user has chosen that rank; until then, the server does
let place = ""; // position of the shown log
let restBytes = "";
let sticks = true; // to the end of the log, until the user scrolls up
let over = false; // whether the contents are final
let request = new AbortController();

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function shape(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Change only different text, so that a selection stays.
function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function showRun(run) {
  document.title = `${run.state}: ${run.name}`;
  write(byId("name"), run.name);
  write(byId("state"), run.state);
  byId("state").className = `state ${run.state}`;
  write(byId("sentence"), run.sentence);
  write(byId("directory"), run.directory);
  byId("attempts").replaceChildren(...run.attempts.map((attempt) => element("p", { className: "note" }, attempt)));
  if (each === null) {
    each = byId("each").checked = run.each;
    if (each) ask();
  }
}

function chartOf(chart) {
  const line = (d, kind, ...children) => shape("path", { d, class: kind }, ...children);
  const look = (series) => `s${series.style}${series.dots ? " dots" : ""}`;
  const label = chart.series.map((series) => `${series.label}, last ${series.last}`).join("; ");
  const svg = shape("svg", {
    viewBox: "0 0 1000 1000", preserveAspectRatio: "none", role: "img",
    "aria-label": `${chart.title} from ${chart.unit} ${chart.steps[0]} to ${chart.steps[1]}: ${label}`,
  });
  const axis = element("div", { className: "y", ariaHidden: "true" });
  for (const [text, y] of chart.grid) {
    const mark = element("span", {}, text);
    mark.style.top = `${y / 10}%`;
    axis.append(mark);
    svg.append(line(`M0 ${y}H1000`, "grid"));
  }
  for (const [x, text] of chart.restarts) svg.append(line(`M${x} 0V1000`, "again", shape("title", {}, text)));
  for (const series of chart.series) svg.append(line(series.d, look(series)));
  const legend = element("div", { className: "legend" });
  for (const series of chart.series) {
    const sample = shape("svg", { viewBox: "0 0 24 8", "aria-hidden": "true" }, line(series.dots ? "M12 4h0" : "M1 4H23", look(series)));
    legend.append(element("span", {}, sample, `${series.label} ${series.last}`));
  }
  if (chart.restarts.length) {
    const sample = shape("svg", { viewBox: "0 0 24 8", "aria-hidden": "true" }, line("M12 -2V10", "again"));
    legend.append(element("span", {}, sample, "restart"));
  }
  const steps = chart.steps.map((step, at) => element("span", {}, at ? step : `${chart.unit} ${step}`));
  const figure = element("figure", { className: "card" },
    element("figcaption", {}, chart.title),
    element("div", { className: "plot" }, axis, svg, element("div", { className: "x" }, ...steps)),
    legend);
  if (chart.note) figure.append(element("p", { className: "note" }, chart.note));
  return figure;
}

function showCharts(news) {
  const shown = byId("charts");
  const titles = parts.get("charts") ?? [];
  const nodeOf = (title) => [...shown.children].find((node) => node.dataset.part === title);
  for (const title of titles) {
    if (!(title in news)) continue;
    const made = chartOf(parts.get(title));
    made.dataset.part = title;
    const before = nodeOf(title);
    if (before) before.replaceWith(made);
    else shown.append(made);
  }
  for (const node of [...shown.children]) if (!titles.includes(node.dataset.part)) node.remove();
  // A chart with another scale has another title, but the same position.
  titles.map(nodeOf).forEach((node, at) => { if (shown.children[at] !== node) shown.insertBefore(node, shown.children[at]); });
  byId("notes").replaceChildren(...(parts.get("chart notes") ?? []).map((note) => element("p", { className: "note" }, note)));
}

// Rows are kept and moved, so that the focus stays.
function showRows(kind) {
  const columns = parts.get("columns");
  if (byId("columns").childElementCount !== columns.length) {
    byId("columns").replaceChildren(...columns.map((name, at) =>
      element("th", { scope: "col", className: at > 1 ? "number" : "" }, name)));
  }
  const body = byId("rows");
  const order = parts.get(`${kind} order`) ?? [];
  const rows = new Map([...body.rows].map((row) => [row.dataset.part, row]));
  order.forEach((name, at) => {
    const part = parts.get(name);
    const row = rows.get(name) ?? element("tr");
    rows.delete(name);
    if (!row.dataset.part) {
      row.dataset.part = name;
      row.append(...part.cells.map((_, column) => column ? element("td", { className: column > 1 ? "number" : "state-cell" })
        : element("th", { scope: "row" }, element("a"))));
    }
    const link = row.cells[0].firstChild;
    const target = part.count > 1 ? "#each" : `#rank-${part.rank}`;
    if (link.getAttribute("href") !== target) {
      link.href = target;
      link.title = part.count > 1 ? "show one row per rank" : "follow this rank's log";
    }
    part.cells.forEach((text, column) => write(column ? row.cells[column] : link, text));
    const isChosen = part.count === 1 && part.rank === rank;
    row.className = `${part.look}${isChosen ? " chosen" : ""}`;
    link.ariaCurrent = isChosen ? "true" : null;
    if (body.rows[at] !== row) body.insertBefore(row, body.rows[at] ?? null);
  });
  for (const row of rows.values()) row.remove();
}

function showLog(log) {
  const view = byId("log");
  if (log.anew) view.replaceChildren();
  else if (view.lastChild?.className === "rest") view.lastChild.remove();
  if (log.skipped) view.append(element("span", { className: "mark" }, `... ${log.skipped.toLocaleString("en")} bytes skipped\n`));
  if (log.lines.length) view.append(...log.lines.slice(-MAX_LINES).map((line) => `${line}\n`));
  while (view.childNodes.length > MAX_LINES) view.firstChild.remove();
  if (log.rest) view.append(element("span", { className: "rest" }, log.rest));
  place = log.place;
  restBytes = log.rest_bytes;
  write(byId("log-note"), log.trouble || (view.hasChildNodes() ? "" : "nothing written yet"));
  if (sticks) view.scrollTop = view.scrollHeight;
}

function show(news) {
  for (const [name, part] of Object.entries(news.parts)) parts.set(name, part);
  seen = news.number;
  if (news.parts.run) showRun(news.parts.run);
  if (parts.has("time")) write(byId("time"), `as of ${parts.get("time")}`);
  const spent = parts.get("spent") && `a step takes ${parts.get("spent")}`;
  write(byId("spent"), [parts.get("progress"), spent].filter(Boolean).join("; "));
  write(byId("said"), parts.get("said") ?? "");
  if (Object.keys(news.parts).some((name) => name.startsWith("chart"))) showCharts(news.parts);
  if (parts.has("columns")) showRows(each ? "rank" : "group");
  if (news.log && news.log.rank !== rank && !chosen) openLog(news.log.rank);
  if (news.log && news.log.rank === rank) showLog(news.log);
}

// Abort the waiting request, and ask again.
function ask(from = 0) {
  seen = from;
  request.abort();
}

function choose() {
  if (location.hash === "#each") {
    byId("each").checked = each = true;
    ask();
    byId("each").focus();
    if (over) showRows("rank");
  }
  const found = /^#rank-(\d+)$/.exec(location.hash);
  if (!found || (chosen && Number(found[1]) === rank)) return;
  chosen = true;
  openLog(Number(found[1]));
  byId("log-title").scrollIntoView();
  ask(seen);
}

// Show the log of a rank from its last lines on.
function openLog(number) {
  rank = number;
  place = restBytes = "";
  write(byId("log-title"), `Log of rank ${rank}`);
  write(byId("log-note"), over ? `The run is over; its log is ${parts.get("run").directory}/device${rank}/train.log` : "...");
  sticks = true;
  byId("log").replaceChildren();
  byId("log").hidden = false;
  if (parts.has("columns")) showRows(each ? "rank" : "group");
}

function say(...parts) {
  byId("connection").hidden = !parts.length;
  byId("connection").replaceChildren(...parts);
}

async function follow() {
  while (!over) {
    request = new AbortController();
    const query = new URLSearchParams({ page, seen });
    if (each) query.set("each", "1");
    const log = { [chosen ? "rank" : "shown"]: rank ?? "", place, rest_bytes: restBytes };
    for (const [name, value] of Object.entries(log)) query.set(name, value);
    try {
      const answer = await fetch(`news?${query}`, { signal: request.signal });
      if (!answer.ok) throw new Error(answer.statusText);
      const news = await answer.json();
      if (request.signal.aborted) continue;
      say();
      show(news);
      over = news.over;
    } catch (error) {
      if (request.signal.aborted) continue;
      say("The server of this page is gone. The page shows the last known state, and continues if the server returns at this address.");
      await new Promise((wake) => setTimeout(wake, RETRY_MS));
    }
  }
  const [report, logs] = ["report", "logs"].map((command) => element("code", {}, `tlaunch ${command} ${parts.get("run").argument}`));
  say("The run is over. This page does not change; ", report, " and ", logs, " show the complete results.");
}

byId("each").addEventListener("change", () => {
  each = byId("each").checked;
  if (over) showRows(each ? "rank" : "group");
  if (location.hash === "#each") history.replaceState(null, "", location.pathname);
  ask();
});
byId("log").addEventListener("scroll", ({ target }) => {
  sticks = target.scrollTop + target.clientHeight >= target.scrollHeight - 8;
});
addEventListener("hashchange", choose);
write(byId("sentence"), "reading the run's files ...");
choose();
follow();
