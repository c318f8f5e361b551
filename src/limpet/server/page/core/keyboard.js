/** Keys of the page that is open: `/`, `j`, `k`, Enter, and so on. They don't apply while a reader types. */

const layers = [];

/** Use these keys until the returned function is called; those that were added last come first. */
export function useKeys(keys) {
  layers.push(keys);
  return () => {
    const index = layers.indexOf(keys);
    if (index >= 0) layers.splice(index, 1);
  };
}

/** Whether keys are typed into an element. */
export function isTyping(element) {
  return Boolean(element?.closest?.("input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable]"));
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const key = event.key;
  if (isTyping(event.target) && key !== "Escape") return;
  if (key === "Enter" && event.target.closest("a, button, summary, input")) return; // they have their own
  for (const keys of layers.toReversed()) {
    const action = keys[key];
    if (action) {
      if (action(event) !== false) event.preventDefault();
      return;
    }
    if (keys.only) return;
  }
});
