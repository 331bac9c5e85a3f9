// The page of a study: what was claimed and what was found, every measure over the grid, and what differs from the paper.

const data = JSON.parse(document.getElementById("study").textContent);

const WIDTH = 460, LEFT = 46, RIGHT = 14;
const VERDICTS = { holds: spoken("holds"), fails: spoken("fails"), undecided: spoken("undecided"), "not testable here": spoken("not testable here"), "not defined": spoken("not defined") };
const average = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

// numbers onto a stretch of the picture; `logarithmic` for axes that grow by factors
function stretched(values, from, to, logarithmic = false) {
  const size = logarithmic ? Math.log : (x) => x;
  const [low, high] = [Math.min(...values), Math.max(...values)].map(size);
  return (x) => from + ((size(x) - low) / (high - low || 1)) * (to - from);
}

const dot = (cx, cy, words, classes) => svg("circle", { cx: cx.toFixed(1), cy: cy.toFixed(1), r: 3, class: classes }, svg("title", {}, words));

// ---- claims: the range that was expected, the interval that was measured, a point for each seed; of seeds that are
// counted, the range in which they count

function claimChart(claim) {
  const seeds = Object.entries(claim.values), { low, high } = (claim.counts ?? claim).range;
  const measured = claim.counts ? [] : [claim.low, claim.high, claim.mean];
  const told = [...measured, low, high, ...seeds.map(([, value]) => value)].filter((x) => x !== null);
  if (!seeds.length) return null;
  const room = 0.12 * (Math.max(...told) - Math.min(...told) || Math.abs(told[0]) || 1);
  const [first, last] = [Math.min(...told) - room, Math.max(...told) + room];
  const px = stretched([first, last], LEFT, WIDTH - RIGHT);
  const middle = 26, [from, to] = [px(low ?? first), px(high ?? last)];
  const words = claim.counts ? spoken("seeds that lie in it count") : spoken("expected: {range}", { range: claim.expected });
  return picture(WIDTH, 62, spoken("{mean} measured, {expected} expected", { mean: said(claim), expected: claim.expected }),
    svg("rect", { x: from, y: 8, width: Math.max(2, to - from), height: 36, class: "expected" }, svg("title", {}, words)),
    ticksOf(first, last).map((t) => [svg("line", { x1: px(t), x2: px(t), y1: 44, y2: 48, class: "rule" }), svg("text", { x: px(t), y: 59, class: "tick middle" }, short(t))]),
    svg("line", { x1: px(first), x2: px(last), y1: 44, y2: 44, class: "rule" }),
    claim.counts || claim.low === null ? null : svg("line", { x1: px(claim.low), x2: px(claim.high), y1: middle, y2: middle, class: "interval" }),
    claim.counts ? null : svg("line", { x1: px(claim.mean), x2: px(claim.mean), y1: middle - 9, y2: middle + 9, class: "interval" }),
    seeds.map(([seed, value]) => dot(px(value), middle, spoken("seed {seed}: {value}", { seed, value: short(value) }), "seed")));
}

function said({ mean, low, high, counts, values }) {
  const found = counts ? spoken("{n} of {all} seeds", { n: counts.count, all: Object.keys(values).length }) : short(mean);
  return low === null || low === high ? found : `${found} [${short(low)}, ${short(high)}]`;
}

// what has to be true first, and whether it is
const givenRows = (claim) => claim.given.map((one) => [one.met ? spoken("given") : spoken("not given"), `${one.text}: ${one.quantity} ${one.expected}`]);

// how an earlier report decided it; the first ones did not keep of what
function earlierWords(claim, old) {
  const of = [old.seeds === undefined ? spoken("scale not recorded") : old.seeds === 1 ? spoken("1 seed") : spoken("{n} seeds", { n: old.seeds }),
    ...Object.entries(old.settings ?? {}).map(([name, value]) => `${name}=${value}`),
    ...(old.given?.length ? [spoken("given: {conditions}", { conditions: old.given.map((one) => one.text).join("; ") })] : claim.given.length ? [spoken("nothing given")] : [])];
  return spoken("Before this, {quantity} was expected {expected} ({of}), and the verdict was: {verdict}.", { quantity: old.quantity ?? claim.quantity, expected: old.expected, of: of.join(spoken(", ")), verdict: VERDICTS[old.verdict] });
}

function claimCard(claim) {
  const measured = claim.mean === null ? null : said(claim);
  const rows = [[spoken("measured"), claim.quantity], [spoken("expected"), claim.expected], [spoken("found"), measured], ...givenRows(claim),
    [spoken("no sample"), claim.exact || null]];
  return el("article", { class: "card claim" },
    el("h3", {}, claim.text, " ", el("span", { class: `verdict ${claim.verdict.replaceAll(" ", "-")}` }, VERDICTS[claim.verdict])),
    claimChart(claim),
    el("dl", { class: "facts" }, rows.filter(([, value]) => value !== null).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
    claim.why ? el("p", { class: "soft" }, claim.why) : null,
    claim.near ? el("p", { class: "soft" }, spoken("Near the border: an end of the interval is within a quarter of half its width of what is expected.")) : null,
    claim.earlier.map((old) => el("p", { class: "soft" }, earlierWords(claim, old))));
}

// ---- measures over the grid: points for seeds, lines or ticks for their means

const AXES = Object.keys(data.grid).filter((axis) => new Set(data.runs.map((run) => run.point[axis])).size > 1);
const SERIES = 6; // as many colours as there are
const called = (point, axes) => axes.map((axis) => `${axis}=${point[axis]}`).join(spoken(", "));

function byName(runs, name) {
  const found = new Map();
  for (const run of runs) found.set(name(run), [...(found.get(name(run)) ?? []), run]);
  return found;
}

// the axis of numbers with the most values becomes the horizontal one
function horizontal() {
  const numeric = AXES.filter((axis) => data.runs.every((run) => typeof run.point[axis] === "number"));
  return numeric.sort((a, b) => new Set(data.runs.map((r) => r.point[b])).size - new Set(data.runs.map((r) => r.point[a])).size)[0];
}

function curves(measure, runs, axis) {
  const others = AXES.filter((other) => other !== axis);
  const groups = [...byName(runs, (run) => called(run.point, others))];
  if (groups.length > SERIES) return null;
  const [xs, ys] = [runs.map((run) => run.point[axis]), runs.map((run) => run.measures[measure.name])];
  const byFactors = Math.min(...xs) > 0 && Math.max(...xs) / Math.min(...xs) >= 16;
  const height = 220, px = stretched(xs, LEFT, WIDTH - RIGHT, byFactors), py = stretched(ys, height - 34, 10);
  const marks = byFactors ? [...new Set(xs)].sort((a, b) => a - b) : ticksOf(Math.min(...xs), Math.max(...xs));
  const drawn = groups.map(([name, own], i) => {
    const at = [...byName(own, (run) => run.point[axis])].sort(([a], [b]) => a - b);
    const line = at.map(([x, same], j) => `${j ? "L" : "M"}${px(x).toFixed(1)} ${py(average(same.map((run) => run.measures[measure.name]))).toFixed(1)}`).join("");
    return [svg("path", { d: line, class: `line series-${i}` }),
      own.map((run) => dot(px(run.point[axis]), py(run.measures[measure.name]), `${called(run.point, AXES)}, ${spoken("seed {seed}: {value}", { seed: run.seed, value: short(run.measures[measure.name]) })}`, `point series-${i}`))];
  });
  return el("figure", { class: "card" }, caption(measure),
    groups.length > 1 ? el("p", { class: "key" }, groups.map(([name], i) => el("span", {}, el("span", { class: `swatch series-${i}` }), name))) : null,
    picture(WIDTH, height, measure.about,
      ticksOf(Math.min(...ys), Math.max(...ys)).map((t) => [svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: py(t), y2: py(t), class: "rule" }), svg("text", { x: LEFT - 6, y: py(t) + 4, class: "tick end" }, short(t))]),
      marks.map((t) => svg("text", { x: px(t), y: height - 19, class: "tick middle" }, short(t))),
      svg("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: height - 3, class: "tick middle" }, axis), drawn));
}

// a row for each point of the grid
function rows(measure, runs) {
  const groups = [...byName(runs, (run) => called(run.point, AXES) || spoken("the one case"))];
  const values = runs.map((run) => run.measures[measure.name]);
  const [low, high] = [Math.min(0, ...values), Math.max(0, ...values)];
  const left = Math.min(220, 16 + 6.2 * Math.max(...groups.map(([name]) => name.length))), gap = 24, height = groups.length * gap + 26;
  const px = stretched([low, high], left, WIDTH - RIGHT);
  return el("figure", { class: "card" }, caption(measure), picture(WIDTH, height, measure.about,
    ticksOf(low, high).map((t) => [svg("line", { x1: px(t), x2: px(t), y1: 2, y2: height - 20, class: "rule" }), svg("text", { x: px(t), y: height - 6, class: "tick middle" }, short(t))]),
    groups.map(([name, own], i) => {
      const y = gap * (i + 0.5) + 2, mean = px(average(own.map((run) => run.measures[measure.name])));
      return [svg("text", { x: left - 8, y: y + 4, class: "tick end" }, name.length * 6 > left ? `${name.slice(0, Math.floor(left / 6) - 1)}…` : name),
        svg("line", { x1: mean, x2: mean, y1: y - 8, y2: y + 8, class: "interval" }),
        own.map((run) => dot(px(run.measures[measure.name]), y, spoken("seed {seed}: {value}", { seed: run.seed, value: short(run.measures[measure.name]) }), "seed"))];
    })));
}

const caption = (measure) => el("figcaption", {}, measure.about || measure.name, measure.unit ? el("span", { class: "soft" }, spoken(", in {unit}", { unit: measure.unit })) : null);

function measureChart(measure) {
  const runs = data.runs.filter((run) => run.measures[measure.name] !== undefined && run.measures[measure.name] !== null);
  const undefinedIn = data.runs.filter((run) => run.undefined[measure.name] ?? run.undefined["*"]);
  const axis = horizontal();
  const drawn = runs.length ? (axis && curves(measure, runs, axis)) || rows(measure, runs) : el("figure", { class: "card" }, caption(measure));
  const why = [...new Set(undefinedIn.map((run) => `${called(run.point, AXES)}: ${run.undefined[measure.name] ?? run.undefined["*"]}`))];
  drawn.append(...why.map((words) => el("p", { class: "soft" }, spoken("Not defined for {case}", { case: words }))));
  if (measure.analysis) drawn.append(el("p", { class: "soft" }, spoken("By {analysis}: {question}", { analysis: measure.analysis, question: spoken(measure.question) }), measure.source ? ` ${measure.source}` : ""));
  return drawn;
}

// ---- the page

const CLOCKS = { cpu_seconds: spoken("CPU seconds"), wall_seconds: spoken("seconds by the clock, one thread") };

function runTable() {
  const axes = Object.keys(data.grid), names = data.measures.map((measure) => measure.name);
  const value = (run, name) => (run.measures[name] === undefined || run.measures[name] === null ? "–" : short(run.measures[name]));
  const clocks = Object.entries(CLOCKS).filter(([clock]) => data.runs.some((run) => run[clock] !== null));
  return el("details", {}, el("summary", {}, spoken("All {n} runs", { n: count(data.runs.length) })),
    scroller(spoken("table of runs"), el("table", { class: "grid" },
      el("thead", {}, el("tr", {}, [...axes, spoken("seed"), ...names, ...clocks.map(([, words]) => words)].map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, data.runs.map((run) => el("tr", {}, axes.map((axis) => el("td", {}, String(run.point[axis]))), el("td", { class: "number" }, String(run.seed)),
        names.map((name) => el("td", { class: "number" }, value(run, name))), clocks.map(([clock]) => el("td", { class: "number" }, run[clock] === null ? "–" : plain(run[clock], 1)))))))));
}

// what all runs took, by the clock if they are from before CPU time was measured, and the training that they found done
function times() {
  const found = Object.values(data.found), known = found.filter((seconds) => seconds !== null);
  const trained = `${known.length ? plain(known.reduce((a, b) => a + b, 0), 0) : ""}${known.length < found.length ? " + ?" : ""}`.replace(/^ \+ /, "");
  return [...Object.entries(CLOCKS).filter(([clock]) => data[clock] !== null).map(([clock, words]) => [words, plain(data[clock], 0)]),
    ...(found.length ? [[spoken("CPU seconds of training found done"), trained]] : [])];
}

function header() {
  const tally = Object.entries(VERDICTS).map(([verdict, words]) => [words, data.claims.filter((claim) => claim.verdict === verdict).length]).filter(([, n]) => n);
  const facts = [[spoken("scale"), data.scale], [spoken("seeds"), data.seeds], [spoken("runs"), data.runs.length], ...times(), ...tally];
  const failed = data.runs.filter((run) => run.error);
  return el("header", { class: "top" },
    el("p", { class: "brand" }, el("strong", {}, "glassformer"), spoken(" · a paper’s claims, checked in miniature")),
    el("h1", {}, spoken(data.question)), el("p", { class: "gloss" }, data.paper),
    el("dl", { class: "facts" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value))))),
    failed.length ? el("ul", { class: "card notes" }, failed.map((run) => el("li", {}, spoken("The run of {case}, seed {seed}, ended in an error, which decides nothing: {error}", { case: called(run.point, Object.keys(run.point)), seed: run.seed, error: run.error })))) : null,
    el("details", { class: "of" }, el("summary", {}, spoken("Machines and versions behind these numbers")),
      data.machines.map((machine) => el("dl", { class: "facts" }, Object.entries(machine).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))))));
}

frame(header(), [
  [spoken("Claims"), section("claims", spoken("What was claimed"), spoken("Each claim was given a range of numbers before the first full run (shaded). It holds if the 95 % interval over seeds (line) lies inside, fails if it lies outside, and is undecided otherwise. A point is one seed. Where a run learns something or does not, seeds in the shaded range are counted, and their share has an exact interval. A claim is not testable here if what has to be true first is not."),
    el("p", {}, !data.chance.by_interval ? spoken("{claims} claims, none of which an interval over seeds decides.", { claims: data.claims.length }) : spoken("{claims} claims, {n} of which a 95 % interval over seeds decides. A claim that is not true holds by chance in one study of forty at most: were none of these {n} true, {expected} would be expected to hold.", { claims: data.claims.length, n: data.chance.by_interval, expected: short(data.chance.false_holds) })),
    el("div", { class: "charts" }, data.claims.map(claimCard)))],
  [spoken("Measures"), section("measures", spoken("What was measured"), spoken("Every measure over the grid of cases: a point for each seed, lines and ticks for their means."),
    el("div", { class: "charts" }, data.measures.map(measureChart)), runTable())],
  data.differs.length ? [spoken("What differs"), section("differs", spoken("What differs from the paper"), spoken("What was done otherwise, and so limits what a verdict here says of the paper."),
    el("ul", { class: "findings" }, data.differs.map((line) => el("li", {}, line))))] : null,
], spoken("Drawn from the report of {study}.", { study: data.study }));
