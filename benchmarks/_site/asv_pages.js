"use strict";
// asv draws every graph with $.plot. Its legends lie on the lines and say what all lines share, and a
// graph of a page that is not shown ends in an error. It also asks every machine for every benchmark.
(() => {
  const plot = $.plot;
  // asv has seven, and shades of them from the eighth line on: there are eight architectures.
  const COLORS = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#7a5c00", "#56b4e9", "#000000", "#e69f00", "#6a3d9a", "#8c8c8c",
  ];

  // A part without a value ("numpy") is asv's default, which tells nothing apart.
  function different(labels) {
    const parts = labels.map((label) => label.split("; ").filter((part) => part.includes("-")));
    const shared = (part) => parts.length > 1 && parts.every((others) => others.includes(part));
    const own = parts.map((all) => all.filter((part) => !shared(part)));
    return own.map((all) => all.map((part) => part.replace("-", " ")).join(", "));
  }

  function withLegend(target, data, options) {
    const labels = different(data.map(({ label }) => label));
    const lines = data.map((line, i) => ({ ...line, label: labels[i] }));
    const legend = { ...options.legend, container: $("#legend"), noColumns: target.width() < 500 ? 2 : 4 };
    const draw = () => plot(target, lines, { ...options, colors: COLORS, legend });
    const height = target.height(), drawn = draw();
    return target.height() === height ? drawn : draw(); // the legend took some of its height
  }

  $.plot = Object.assign((target, data, options) => {
    if (!(target.width() > 0 && target.height() > 0)) {
      target = $("<div>").css({ width: 300, height: 100 }); // asv draws anew what it shows again
    }
    return target.is("#main-graph") ? withLegend(target, data, options) : plot(target, data, { ...options, colors: COLORS });
  }, plot);

  $(() => {
    $("#graph > div:first-child").after($("<div id='legend'>"));
    const absent = new Set(JSON.parse($("#absent").text()));
    const load = $.asv.load_graph_data;
    $.asv.load_graph_data = (url) => (absent.has(decodeURIComponent(url)) ? $.Deferred().reject().promise() : load(url));
  });
})();
