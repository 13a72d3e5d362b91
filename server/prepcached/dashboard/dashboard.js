// Keeps the page current without reloading it: fetches the same address and replaces what has changed.
// A part in which the reader types, or whose text is selected, is left alone until the next turn.
"use strict";
const EVERY_MS = 1000;

function isBusy(part) {
  const selection = document.getSelection();
  const selected = selection !== null && !selection.isCollapsed && part.contains(selection.anchorNode);
  return selected || part.contains(document.activeElement);
}

async function follow() {
  if (!document.hidden) {
    try {
      const answer = await fetch(location.href, {cache: "no-store"});
      if (answer.ok) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        for (const part of document.querySelectorAll("[data-live]")) {
          const fresh = page.getElementById(part.id);
          if (fresh !== null && fresh.innerHTML !== part.innerHTML && !isBusy(part)) {
            part.replaceChildren(...fresh.childNodes);
          }
        }
        document.getElementById("lost").hidden = true;
      }
    } catch {
      document.getElementById("lost").hidden = false;
    }
  }
  setTimeout(follow, EVERY_MS);
}

setTimeout(follow, EVERY_MS);
