// Keeps an open page up to date, and adds what is not possible without a script. Everything else works without it.
"use strict";
(() => {
  const EVERY_MS = 3000;
  const raw = new Map(); // id of a region -> its HTML as the server sent it
  let etag = null, paused = false, timer = 0;

  const regions = (root) => root.querySelectorAll("[data-region]");

  // -- times in the viewer's own zone

  const zoned = new Intl.DateTimeFormat(document.documentElement.lang, { dateStyle: "medium", timeStyle: "medium" });

  let isLocal = false;
  try { isLocal = localStorage.getItem("delayq-zone") === "local"; } catch { /* the browser keeps nothing */ }

  function showTimes(root) {
    for (const time of root.querySelectorAll("time[datetime]")) {
      const when = new Date(time.getAttribute("datetime"));
      if (Number.isNaN(when.getTime())) continue;
      time.dataset.utc ??= time.textContent;
      const own = `${zoned.format(when)} ${zoned.resolvedOptions().timeZone}`;
      const both = time.hasAttribute("data-both") ? ` (${isLocal ? time.dataset.utc : own})` : "";
      time.textContent = (isLocal ? own : time.dataset.utc) + both;
      time.title = isLocal ? time.dataset.utc : own;
    }
  }

  function startZone() {
    const button = document.getElementById("zone"), words = [button.textContent, button.dataset.other];
    const name = () => { button.textContent = words[Number(isLocal)]; document.getElementById("utc").hidden = isLocal; };
    button.hidden = false;
    button.addEventListener("click", () => {
      isLocal = !isLocal;
      try { localStorage.setItem("delayq-zone", isLocal ? "local" : "utc"); } catch { /* as above */ }
      name();
      showTimes(document);
    });
    name();
  }

  // -- swapping regions

  function keyOf(element) {
    if (element.id) return `#${CSS.escape(element.id)}`;
    for (const name of ["href", "value"]) {
      if (element.hasAttribute(name)) return `${element.localName}[${name}="${CSS.escape(element.getAttribute(name))}"]`;
    }
    return null;
  }

  function isSelectedIn(region) {
    const selection = document.getSelection();
    return selection && !selection.isCollapsed && region.contains(selection.anchorNode);
  }

  function swap(region, html) {
    if (raw.get(region.id) === html || isSelectedIn(region)) return;
    const checked = new Set([...region.querySelectorAll("input[type=checkbox]:checked")].map((box) => box.value));
    const open = [...region.querySelectorAll("details[open][id]")].map((each) => each.id);
    const scrolled = [...region.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
    const focused = region.contains(document.activeElement) ? keyOf(document.activeElement) : null;
    raw.set(region.id, html);
    region.innerHTML = html;
    for (const box of region.querySelectorAll("input[type=checkbox]:not([data-all])")) box.checked = checked.has(box.value);
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    region.querySelectorAll(".scroll").forEach((each, at) => { each.scrollLeft = scrolled[at] ?? 0; });
    if (focused) region.querySelector(focused)?.focus({ preventScroll: true });
    prepare(region);
  }

  function swapAll(text) {
    const page = new DOMParser().parseFromString(text, "text/html");
    for (const region of regions(document)) {
      const newer = page.getElementById(region.id);
      if (newer) swap(region, newer.innerHTML);
    }
  }

  // -- live updates

  async function update() {
    try {
      const headers = { "X-Delayq-Live": "1", ...(etag && { "If-None-Match": etag }) };
      const response = await fetch(location.href.split("#")[0], { headers, cache: "no-store" });
      if (response.status !== 304) {
        if (response.redirected) return;
        etag = response.headers.get("ETag");
        swapAll(await response.text());
      }
    } catch {
      etag = null; // the server of this page is away: the next answer counts
    } finally {
      plan();
    }
  }

  function plan() {
    clearTimeout(timer);
    if (!paused && document.visibilityState === "visible") timer = setTimeout(update, EVERY_MS);
  }

  function startLive() {
    const place = document.getElementById("live"), button = place.querySelector("button");
    place.hidden = false;
    button.addEventListener("click", () => {
      paused = !paused;
      button.textContent = paused ? button.dataset.resume : button.dataset.pause;
      if (!paused) update(); else plan();
    });
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible" && !paused) update(); else plan();
    });
    plan();
  }

  // -- many tasks, chunk after chunk

  async function goOn(form) {
    const response = await fetch(location.href, { method: "POST", body: new URLSearchParams(new FormData(form)) });
    if (!form.isConnected) return; // the user has stopped
    swapAll(await response.text());
    if (!response.ok) form.removeAttribute("data-auto");
  }

  // -- what a region needs when it is there

  function prepare(root) {
    showTimes(root);
    for (const box of root.querySelectorAll("input[data-all]")) {
      box.hidden = false;
      box.addEventListener("change", () => {
        for (const each of box.closest("table").querySelectorAll("tbody input[type=checkbox]")) each.checked = box.checked;
      });
    }
    const form = root.querySelector("form[data-auto]");
    if (form) goOn(form).catch(() => {}); // the button is still there
  }

  for (const region of regions(document)) raw.set(region.id, region.innerHTML);
  startZone();
  prepare(document);
  if (document.body.hasAttribute("data-live")) startLive();
})();
