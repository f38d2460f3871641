// Makes the picture that fits the window explorable: facts on hover, focus and click, search, zoom, keyboard, theme.
(() => {
  const root = document.documentElement, panel = document.getElementById("facts");
  const find = document.getElementById("find"), count = document.getElementById("count");
  const drawn = [...document.querySelectorAll(".picture svg")];
  const all = [...document.querySelectorAll("[data-facts]")];
  const words = new Map();
  let ring, now = null, pinned = false, home = null;

  const svg = () => drawn.find((each) => each.getClientRects().length) ?? drawn[0];
  const marks = () => [...svg().querySelectorAll("[data-facts]")];
  const middle = (mark) => {
    const at = mark.getBoundingClientRect();
    return { x: at.left + at.width / 2, y: at.top + at.height / 2 };
  };

  for (const mark of all) {
    const title = mark.querySelector("title");
    words.set(mark, title.textContent);
    mark.setAttribute("aria-label", title.textContent);
    mark.setAttribute("role", "button");
    mark.setAttribute("tabindex", "-1");
    title.remove();
  }
  for (const each of drawn) each.querySelector("[data-facts]")?.setAttribute("tabindex", "0");

  function encircle(mark) {
    ring?.remove();
    ring = null;
    if (!mark) return;
    const line = mark.querySelector("line");
    const { x, y, width, height } = mark.getBBox();
    ring = document.createElementNS("http://www.w3.org/2000/svg", mark.querySelector("rect") ? "rect" : "line");
    const at = mark.querySelector("rect")
      ? { x: x - 2, y: y - 2, width: width + 4, height: height + 4, rx: 5, fill: "none", "stroke-width": 3 }
      : { ...Object.fromEntries(["x1", "y1", "x2", "y2"].map((n) => [n, line.getAttribute(n)])), "stroke-width": 9 };
    for (const [name, value] of Object.entries({ ...at, class: "ring" })) ring.setAttribute(name, value);
    mark.parentNode.append(ring);
  }

  function place(mark) {
    const at = mark.getBoundingClientRect(), wide = Math.min(32 * parseFloat(getComputedStyle(panel).fontSize), innerWidth - 16);
    panel.style.width = wide + "px";
    const room = innerWidth - at.right > wide + 24 ? at.right + 14 : at.left > wide + 24 ? at.left - wide - 14 : innerWidth - wide - 8;
    const high = Math.max(12, innerHeight - panel.offsetHeight - 12);
    panel.style.left = room + "px";
    panel.style.top = Math.min(Math.max(at.top + at.height / 2 - panel.offsetHeight / 2, 12), high) + "px";
  }

  function show(mark, pin = false) {
    now = mark;
    pinned = pin && !!mark;
    panel.hidden = !mark;
    panel.classList.toggle("pinned", pinned);
    encircle(mark);
    if (!mark) return;
    const facts = document.getElementById("facts-" + mark.dataset.facts);
    const body = panel.querySelector("div");
    const [head, ...rest] = words.get(mark).split("\n");
    if (facts) body.replaceChildren(facts.content.cloneNode(true));
    else {
      body.replaceChildren(document.createElement("h2"), document.createElement("p"));
      body.firstChild.textContent = head;
      body.lastChild.textContent = rest.join("\n");
    }
    place(mark);
  }

  function go(mark, pin = pinned) {
    if (!mark) return;
    svg().querySelector('[tabindex="0"]')?.setAttribute("tabindex", "-1");
    mark.setAttribute("tabindex", "0");
    mark.focus({ preventScroll: true });
    mark.scrollIntoView({ block: "center", inline: "nearest" });
    show(mark, pin);
  }

  function towards(dx, dy) {
    const from = middle(now ?? marks()[0]);
    const cost = (mark) => {
      const at = middle(mark), x = at.x - from.x, y = at.y - from.y, ahead = x * dx + y * dy;
      return ahead > 1 ? ahead + 3 * Math.abs(x * dy + y * dx) : Infinity;
    };
    const near = marks().filter((mark) => mark !== now).map((mark) => [cost(mark), mark]).sort((a, b) => a[0] - b[0])[0];
    if (near && near[0] < Infinity) go(near[1]);
  }

  // The next of some marks after the current one, in the order of the picture; after the last comes the first.
  function next(some) {
    const order = marks(), here = order.indexOf(now);
    go(some.find((mark) => order.indexOf(mark) > here) ?? some[0], true);
  }
  const critical = () => next(marks().filter((mark) => "critical" in mark.dataset));

  function search(jump) {
    const text = find.value.trim().toLowerCase();
    const facts = (mark) => document.getElementById("facts-" + mark.dataset.facts)?.content.textContent ?? "";
    const hit = marks().filter((mark) => text && (words.get(mark) + facts(mark)).toLowerCase().includes(text));
    root.classList.toggle("found", !!text);
    for (const mark of all) mark.classList.toggle("hit", hit.includes(mark));
    count.textContent = text ? `${hit.length} found` : "";
    if (jump && hit.length) next(hit), find.focus();
  }

  function zoom(by, x, y) {
    const box = svg(), view = box.viewBox.baseVal;
    box.home ??= [view.x, view.y, view.width, view.height];
    const at = box.getBoundingClientRect(), most = box.home[2];
    const wide = by ? Math.min(most, Math.max(most / 40, view.width / by)) : most;
    const high = (wide / most) * box.home[3];
    const fx = x === undefined ? 0.5 : (x - at.left) / at.width, fy = y === undefined ? 0.5 : (y - at.top) / at.height;
    move(view.x + fx * (view.width - wide), view.y + fy * (view.height - high), wide, high);
  }

  function move(x, y, wide, high) {
    const box = svg(), [, , most, tall] = box.home;
    const clip = (value, top) => Math.min(Math.max(value, 0), top);
    box.setAttribute("viewBox", [clip(x, most - wide), clip(y, tall - high), wide, high].join(" "));
    box.classList.toggle("zoomed", wide < most);
    if (now) place(now);
  }

  const mark_of = (event) => event.target.closest?.("[data-facts]") ?? null;
  const acts = {
    critical, in: () => zoom(1.4), out: () => zoom(1 / 1.4), fit: () => zoom(0),
    theme: () => (root.dataset.theme = getComputedStyle(root).colorScheme === "dark" ? "light" : "dark"),
    copy: async () => {
      const button = panel.querySelector("[data-act=copy]"), text = panel.querySelector("div");
      try {
        await navigator.clipboard.writeText(text.innerText);
        button.textContent = "Copied";
      } catch { // A page on an insecure host has no clipboard, and a browser may refuse it.
        getSelection().selectAllChildren(text);
        button.textContent = "Selected: press Ctrl+C";
      }
      setTimeout(() => (button.textContent = "Copy"), 2000);
    },
    close: () => show(null),
  };
  document.addEventListener("pointerover", (event) => pinned || panel.contains(event.target) || show(mark_of(event)));
  document.addEventListener("focusin", (event) => mark_of(event) && show(mark_of(event), pinned));
  document.addEventListener("click", (event) => {
    const act = event.target.closest?.("[data-act]")?.dataset.act;
    if (act) return acts[act]();
    if (panel.contains(event.target) || home?.moved) return;
    const mark = mark_of(event), stack = mark && document.getElementById("stack-" + mark.dataset.facts);
    if (stack) stack.open = true;
    mark ? go(mark, true) : show(null);
  });
  const keys = {
    ArrowUp: () => towards(0, -1), ArrowDown: () => towards(0, 1),
    ArrowLeft: () => towards(-1, 0), ArrowRight: () => towards(1, 0),
    Enter: () => now && show(now, true), Escape: acts.close, c: critical,
    "+": acts.in, "-": acts.out, 0: acts.fit, "/": () => find.focus(),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target === find) {
      if (event.key === "Enter") search(true);
      if (event.key === "Escape") (find.value = ""), search(), find.blur();
      return;
    }
    if (!keys[event.key] || (event.target.closest("button, summary") && event.key === "Enter")) return;
    if (event.key.startsWith("Arrow") && !mark_of(event)) return;
    event.preventDefault();
    keys[event.key]();
  });
  find.addEventListener("input", () => search());
  document.addEventListener("wheel", (event) => {
    if (!event.ctrlKey || !svg().contains(event.target)) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2, event.clientX, event.clientY);
  }, { passive: false });
  document.addEventListener("pointerdown", (event) => {
    const view = svg().viewBox.baseVal;
    home = svg().classList.contains("zoomed") && svg().contains(event.target)
      ? { x: event.clientX, y: event.clientY, left: view.x, top: view.y, moved: false } : null;
  });
  document.addEventListener("pointermove", (event) => {
    if (!home || !event.buttons) return;
    const view = svg().viewBox.baseVal, scale = view.width / svg().getBoundingClientRect().width;
    home.moved ||= Math.hypot(event.clientX - home.x, event.clientY - home.y) > 4;
    move(home.left - (event.clientX - home.x) * scale, home.top - (event.clientY - home.y) * scale, view.width, view.height);
  });
})();
