// Shows the facts of the box or arrow that is pointed at, focused or touched, beside it, and rings it.
(() => {
  const panel = document.getElementById("facts");
  const marks = document.querySelectorAll("[data-facts]");
  if (!marks.length) return;
  const ring = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  for (const [name, value] of Object.entries({ fill: "none", "stroke-width": 3, "stroke-opacity": 0.45, rx: 5 }))
    ring.setAttribute(name, value);
  ring.style.pointerEvents = "none";
  marks[0].parentNode.append(ring);
  let now = null;

  const held = (mark) => document.getElementById("facts-" + mark.dataset.facts).content;

  function encircle(mark) {
    const box = mark.querySelector("rect");
    ring.style.display = box ? "" : "none";
    if (!box) return;
    const { x, y, width, height } = mark.getBBox();
    ring.setAttribute("stroke", box.getAttribute("stroke") || "#5A6475");
    for (const [name, value] of Object.entries({ x: x - 2, y: y - 2, width: width + 4, height: height + 4 }))
      ring.setAttribute(name, value);
  }

  function place(mark) {
    const at = mark.getBoundingClientRect();
    const view = document.documentElement.clientWidth;
    const beside = document.querySelector("aside > section").getBoundingClientRect();
    const free = beside.left > at.right;
    panel.style.width = (free ? beside.width : Math.min(380, view - 16)) + "px";
    const far = at.left + at.width / 2 > view / 2 ? 8 : view - panel.offsetWidth - 8;
    const left = free ? beside.left : far;
    const high = window.innerHeight - panel.offsetHeight - 12;
    const top = Math.min(Math.max(at.top + at.height / 2 - panel.offsetHeight / 2, 12), Math.max(12, high));
    panel.style.left = window.scrollX + left + "px";
    panel.style.top = window.scrollY + top + "px";
  }

  function show(mark) {
    if (now) now.classList.remove("on");
    now = mark;
    panel.style.display = mark ? "block" : "none";
    if (!mark) return void (ring.style.display = "none");
    mark.classList.add("on");
    panel.replaceChildren(held(mark).cloneNode(true));
    encircle(mark);
    place(mark);
  }

  const find = (event) => event.target.closest?.("[data-facts]") ?? null;
  document.addEventListener("pointerover", (event) => show(find(event)));
  document.addEventListener("focusin", (event) => show(find(event)));
  document.addEventListener("focusout", () => show(null));
  document.addEventListener("keydown", (event) => event.key === "Escape" && show(null));
  document.addEventListener("click", (event) => {
    const mark = find(event);
    show(mark);
    const stack = mark && document.getElementById("stack-" + mark.dataset.facts);
    if (stack) stack.open = !stack.open;
  });
  for (const mark of marks) {
    mark.setAttribute("tabindex", "0");
    mark.setAttribute("aria-label", held(mark).querySelector("h2").textContent.trim());
    mark.querySelector("title")?.remove();
  }
})();
