// Comfort only: the page reads the same without it. A button for light or dark, and titles shown at once, also by touch.
(() => {
  const root = document.documentElement;
  const button = document.createElement("button");
  button.textContent = "light / dark";
  button.onclick = () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  };
  document.querySelector("nav").append(button);

  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);
  const titled = (node) => [...(node.children || [])].find((child) => child.tagName === "title");
  const show = (event) => {
    const title = event.target.closest?.(".chart") && (titled(event.target) || titled(event.target.parentNode));
    tip.hidden = !title;
    if (!title) return;
    tip.textContent = title.textContent;
    tip.style.left = `${Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 4)}px`;
    tip.style.top = `${Math.max(event.clientY - 30, 2)}px`;
  };
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
})();
