// What attention mechanisms cost: for each call a table by mechanism and length beside the fused baseline, and growth.

const TIMES = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]];
const SIZES = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]];

// a quantity in the largest unit of which it holds one
function measured(x, units) {
  if (x === null) return "";
  const [size, unit] = units.find(([one]) => x >= one) ?? units.at(-1);
  return `${Number((x / size).toPrecision(3))} ${unit}`;
}

const ratioSaid = (x) => (x === null ? "" : x < 10 ? x.toFixed(2) : String(Number(x.toPrecision(3))));
const interval = (low, high) => (low === null ? "" : `${ratioSaid(low)}–${ratioSaid(high)}`);

function costsTable(result, call) {
  const at = (name) => new Tensor(result[name] ?? result.derived[name]).pick("call", call);
  const [seconds, peaks, ratio, low, high, least, largest, sameLow, sameHigh, held] =
    ["seconds", "peak_bytes", "ratio", "ratio_low", "ratio_high", "ratio_least", "ratio_largest", "same_low", "same_high", "memory_ratio"].map(at);
  const cell = (text) => el("td", { class: "number" }, text);
  const row = (name, m, length, n) => (seconds.at(m, n) === null ? null : el("tr", {},
    el("th", { scope: "row" }, spoken(String(name))), cell(count(length)), cell(measured(seconds.at(m, n), TIMES)),
    // the baseline stands first, and is compared with nothing
    ...(m === 0 ? ["", "", "", "", measured(peaks.at(m, n), SIZES), ""] : [ratioSaid(ratio.at(m - 1, n)), interval(low.at(m - 1, n), high.at(m - 1, n)), interval(least.at(m - 1, n), largest.at(m - 1, n)),
      interval(sameLow.at(m - 1, n), sameHigh.at(m - 1, n)), measured(peaks.at(m, n), SIZES), ratioSaid(held.at(m - 1, n))]).map(cell)));
  const heads = [spoken("length"), spoken("time"), spoken("x fused"), spoken("95 % interval"), spoken("all rounds"), "A/A", spoken("memory"), spoken("x fused")];
  const otherwise = result.measured_by[new Tensor(result.seconds).labels("call")[call]];
  return el("div", { class: "stack" }, otherwise ? el("p", { class: "soft" }, spoken(otherwise)) : null, tallRoom(spoken("costs"), el("table", { class: "data" },
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, spoken("mechanism")), heads.map((head) => el("th", { scope: "col", class: "number" }, head)))),
    el("tbody", {}, seconds.labels("mechanism").flatMap((name, m) => seconds.labels("length").map((length, n) => row(name, m, length, n)))))));
}

function growthTable(result) {
  const [exponents, low, high] = ["growth", "growth_low", "growth_high"].map((name) => new Tensor(result[name]));
  const said = (...at) => (exponents.at(...at) === null ? "" : `${exponents.at(...at).toFixed(2)} (${low.at(...at).toFixed(2)} … ${high.at(...at).toFixed(2)})`);
  const rows = exponents.labels("mechanism").flatMap((name, m) => exponents.labels("call").map((call, c) => [name, call, said(0, c, m), said(1, c, m)]));
  return tallRoom(spoken("growth"), el("table", { class: "data" },
    el("thead", {}, el("tr", {}, [spoken("mechanism"), spoken("call"), spoken("time"), spoken("memory")].map((head, i) => el("th", { scope: "col", class: i < 2 ? null : "number" }, head)))),
    el("tbody", {}, rows.filter((row) => row[2] || row[3]).map(([name, call, time, memory]) => el("tr", {}, el("th", { scope: "row" }, spoken(String(name))),
      el("td", {}, spoken(String(call))), el("td", { class: "number" }, time), el("td", { class: "number" }, memory))))));
}

function costsView(result) {
  const calls = new Tensor(result.seconds).labels("call");
  const shown = el("div", {}, costsTable(result, 0));
  return el("div", { class: "stack" },
    el("h3", {}, spoken("Beside fused softmax attention")),
    el("p", { class: "soft" }, spoken("x fused: time or memory over that of scaled_dot_product_attention, which takes turns with it; below 1 is less. All rounds: from the least to the largest ratio of a round. A/A: what two equal things differ by here.")),
    el("div", { class: "choices" }, choice("call", calls, null, (call) => shown.replaceChildren(costsTable(result, call)))), shown,
    el("h3", {}, spoken("Growth with length")),
    el("p", { class: "soft" }, spoken("Exponents: 1 is linear, 2 quadratic. In brackets the least and the largest between neighbouring lengths.")), growthTable(result));
}
