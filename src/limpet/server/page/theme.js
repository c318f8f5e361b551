// Loaded before anything is painted, so that a chosen theme doesn't flash.
try {
  const theme = localStorage.getItem("limpet.theme");
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
} catch {
  // A browser that keeps nothing: the system's theme is used.
}
