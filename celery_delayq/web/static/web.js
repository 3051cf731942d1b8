// Keeps an open page up to date, and adds what is not possible without a script. Everything else works without it.
"use strict";
(() => {
  const EVERY_MS = 3000;
  const raw = new Map(); // id of a region -> its HTML as the server sent it
  let etag = null, paused = false, timer = 0;

  const regions = (root) => root.querySelectorAll("[data-region]");

  // -- times in the viewer's own zone

  const zone = new Intl.DateTimeFormat().resolvedOptions().timeZone;
  const days = new Intl.DateTimeFormat(document.documentElement.lang, { weekday: "short" });

  let isLocal = false;
  try { isLocal = zone !== "UTC" && localStorage.getItem("delayq-zone") === "local"; } catch { /* the browser keeps nothing */ }

  const localIso = (when) => new Date(when - when.getTimezoneOffset() * 60000).toISOString().slice(0, 19);

  // Returns a time as the server writes it, in the viewer's zone: "2030-12-31 23:59:00 UTC+5:30".
  function ownTime(when, hasDay) {
    const minutes = -when.getTimezoneOffset(), [h, m] = [Math.trunc(Math.abs(minutes) / 60), Math.abs(minutes) % 60];
    const offset = minutes ? `${minutes < 0 ? "-" : "+"}${h}${m ? `:${String(m).padStart(2, "0")}` : ""}` : "";
    return `${hasDay ? `${days.format(when)} ` : ""}${localIso(when).replace("T", " ")} UTC${offset}`;
  }

  function showTimes(root) {
    for (const time of root.querySelectorAll("time[datetime]")) {
      const when = new Date(time.getAttribute("datetime"));
      if (Number.isNaN(when.getTime())) continue;
      time.dataset.utc ??= time.textContent;
      const own = ownTime(when, time.hasAttribute("data-day"));
      const both = time.hasAttribute("data-both") && own !== time.dataset.utc ? ` (${isLocal ? time.dataset.utc : own})` : "";
      time.textContent = (isLocal ? own : time.dataset.utc) + both;
      time.title = isLocal ? time.dataset.utc : own;
    }
  }

  function startZone() {
    const button = document.getElementById("zone");
    const shown = [button, document.getElementById("utc")], words = shown.map((it) => [it.textContent, it.dataset.other]);
    const name = () => shown.forEach((it, at) => { it.textContent = words[at][Number(isLocal)]; });
    button.hidden = zone === "UTC";
    button.addEventListener("click", () => {
      isLocal = !isLocal;
      try { localStorage.setItem("delayq-zone", isLocal ? "local" : "utc"); } catch { /* as above */ }
      name();
      showTimes(document);
      document.querySelectorAll("[data-picks]").forEach(showPicked);
    });
    name();
  }

  // -- a picker beside a field for a time: it has the zone shown, and the field what the server reads

  const WRITTEN = /^(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d(?::\d\d)?)$/; // in UTC

  const fieldOf = (picker) => picker.closest("form").elements[picker.dataset.picks];

  function showPicked(picker) {
    const found = WRITTEN.exec(fieldOf(picker).value.trim()), input = picker.querySelector("input");
    picker.querySelector("span").textContent = isLocal ? zone : "UTC";
    const when = found ? new Date(`${found[1]}T${found[2]}Z`) : new Date(NaN);
    input.value = Number.isNaN(when.getTime()) ? "" : isLocal ? localIso(when) : when.toISOString().slice(0, 19);
  }

  function startPicker(picker) {
    const input = picker.querySelector("input"), field = fieldOf(picker);
    picker.hidden = false;
    input.addEventListener("input", () => {
      const when = new Date(isLocal ? input.value : `${input.value}Z`);
      if (!Number.isNaN(when.getTime())) field.value = when.toISOString().slice(0, 19).replace("T", " ");
    });
    field.addEventListener("input", () => showPicked(picker));
    showPicked(picker);
  }

  // -- what needs a selection is off without one

  function startActions(form) {
    const tell = () => {
      const isSome = form.elements.scope.value === "matching" || form.querySelector("tbody input[type=checkbox]:checked");
      for (const button of form.querySelectorAll("button[name=action]")) button.disabled = !isSome;
    };
    form.addEventListener("change", tell);
    form.addEventListener("selected", tell);
    window.addEventListener("pageshow", tell); // a browser that goes back restores what was checked
    tell();
  }

  // -- swapping regions

  function keyOf(element) {
    if (element.id) return `#${CSS.escape(element.id)}`;
    if (element.localName === "summary") return `#${CSS.escape(element.parentElement.id)} > summary`;
    const names = ["role", "name", "href", "value", "aria-label", "aria-labelledby"].filter((name) => element.hasAttribute(name));
    return element.localName + names.map((name) => `[${name}="${CSS.escape(element.getAttribute(name))}"]`).join("");
  }

  function isSelectedIn(region) {
    const selection = document.getSelection();
    return selection && !selection.isCollapsed && selection.containsNode(region, true);
  }

  function swap(region, html) {
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
    region.closest("form")?.dispatchEvent(new Event("selected"));
    prepare(region);
  }

  // Returns whether all is new now: what is selected as text stays as it is, to be copied.
  function swapAll(text) {
    const page = new DOMParser().parseFromString(text, "text/html");
    let isAll = true;
    for (const region of regions(document)) {
      const html = page.getElementById(region.id)?.innerHTML;
      if (html === undefined || raw.get(region.id) === html) continue;
      if (isSelectedIn(region)) isAll = false; else swap(region, html);
    }
    return isAll;
  }

  function sayAway() {
    const notice = document.getElementById("notice"), text = document.createElement("p");
    if (!raw.delete("notice")) return; // it says so already
    text.className = "notice bad";
    text.textContent = notice.dataset.away;
    notice.replaceChildren(text);
  }

  // -- live updates

  async function update() {
    const url = location.href.split("#")[0];
    try {
      const answer = await ask(url);
      if (answer) take(url, ...answer);
    } finally {
      plan();
    }
  }

  // Returns the answer and its text; null if nothing is new, or nobody answers.
  async function ask(url) {
    try {
      const headers = { "X-Delayq-Live": "1", ...(etag && { "If-None-Match": etag }) };
      const response = await fetch(url, { headers, cache: "no-store" });
      return response.status === 304 || response.redirected ? null : [response, await response.text()];
    } catch {
      etag = null;
      sayAway();
      return null;
    }
  }

  function take(url, response, text) {
    if (response.ok && document.body.dataset.live === "away") {
      location.replace(url); // this page has no place for what there is now
      return;
    }
    etag = swapAll(text) ? response.headers.get("ETag") : null;
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
    document.getSelection()?.removeAllRanges();
    swapAll(await response.text());
    if (!response.ok) form.removeAttribute("data-auto");
  }

  // -- what a region needs when it is there

  function prepare(root) {
    showTimes(root);
    for (const box of root.querySelectorAll("input[data-all]")) {
      const table = box.closest("table"), rows = [...table.querySelectorAll("tbody input[type=checkbox]")];
      const tell = () => { box.checked = rows.length > 0 && rows.every((each) => each.checked); };
      box.hidden = !rows.length;
      table.addEventListener("change", (change) => {
        if (change.target === box) for (const each of rows) each.checked = box.checked; else tell();
      });
      tell();
    }
    const form = root.querySelector("form[data-auto]");
    if (form) goOn(form).catch(sayAway); // the button is still there
  }

  for (const region of regions(document)) raw.set(region.id, region.innerHTML);
  startZone();
  document.querySelectorAll("[data-picks]").forEach(startPicker);
  for (const form of document.forms) if (form.elements.scope?.length) startActions(form);
  prepare(document);
  if (document.body.hasAttribute("data-live")) startLive();
})();
