"use strict";
// The page is whole without this: it adds values under the pointer, sorting, and copying.
(() => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const written = (value, unit) => {
    if (unit === "bytes") {
      let at = 0;
      while (value >= 1024 && at < units.length - 1) { value /= 1024; at += 1; }
      return `${value.toFixed(at ? 1 : 0)} ${units[at]}`;
    }
    if (unit === "seconds") return value < 1 ? `${(value * 1e3).toPrecision(3)} ms` : `${value.toPrecision(3)} s`;
    if (unit === "celsius") return `${value.toFixed(0)} °C`;
    return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : value.toPrecision(4);
  };
  const placesOf = (path) => [...path.getAttribute("d").matchAll(/([\d.-]+) ([\d.-]+)/g)].map((m) => [+m[1], +m[2]]);

  for (const area of document.querySelectorAll(".area")) {
    const svg = area.querySelector("svg");
    const [x0, x1, y0, y1] = svg.dataset.ends.split(" ").map(Number);
    let series;
    const hair = document.createElement("div"), tip = document.createElement("div");
    hair.className = "hair"; tip.className = "tip"; tip.setAttribute("aria-hidden", "true");
    const leave = () => { hair.remove(); tip.remove(); };
    area.addEventListener("pointerleave", leave);
    area.addEventListener("pointermove", (event) => {
      series ??= [...svg.querySelectorAll("path[data-name]")].map((path) => [path.dataset.name, placesOf(path)]);
      const box = area.getBoundingClientRect();
      const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
      tip.replaceChildren();
      const line = (text) => { const row = document.createElement("div"); row.textContent = text; tip.append(row); };
      line(`step ${Math.round(x0 + share * (x1 - x0)).toLocaleString("en")}`);
      for (const [name, places] of series) {
        let near = null;
        for (const place of places) if (!near || Math.abs(place[0] - share * 1000) < Math.abs(near[0] - share * 1000)) near = place;
        if (near) line(`${name}: ${written(y0 + (1 - near[1] / 1000) * (y1 - y0), svg.dataset.unit)}`);
      }
      hair.style.left = tip.style.left = `${share * 100}%`;
      tip.style.transform = share > 0.5 ? "translateX(calc(-100% - 8px))" : "translateX(8px)";
      area.append(hair, tip);
    });
  }

  for (const table of document.querySelectorAll("table[data-sortable]")) {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
    heads.forEach((head, at) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((other) => other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const key = (row) => row.cells[at].dataset.value ?? row.cells[at].textContent.trim();
        const rows = [...body.rows].map((row) => [key(row), row]);
        rows.sort(([a], [b]) => {
          if (a === "" || b === "") return (a === "") - (b === "");
          const order = isNaN(a) || isNaN(b) ? String(a).localeCompare(String(b), "en", { numeric: true }) : a - b;
          return up ? order : -order;
        });
        body.append(...rows.map(([, row]) => row));
      });
    });
  }

  const trials = document.querySelectorAll("[data-trial]");
  const light = (number) => {
    for (const one of document.querySelectorAll(".trial")) {
      one.classList.toggle("lit", number !== null && one.dataset.trial === number);
      one.classList.toggle("dim", number !== null && one.dataset.trial !== number);
    }
  };
  for (const one of trials) {
    one.addEventListener("pointerenter", () => light(one.dataset.trial));
    one.addEventListener("pointerleave", () => light(null));
  }

  for (const button of document.querySelectorAll("[data-copy]")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const source = document.getElementById(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(source.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(source);
        button.textContent = "Selected";
      }
    });
  }

  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
})();
