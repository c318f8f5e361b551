// How many texts a page shows, and which of them have a contrast below 4.5 to what is behind them.
() => {
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    probe.clearRect(0, 0, 1, 1);
    probe.fillStyle = colour;
    probe.fillRect(0, 0, 1, 1);
    return [...probe.getImageData(0, 0, 1, 1).data].map((each, index) => (index === 3 ? each / 255 : each));
  };
  const over = (top, below) => [...below.slice(0, 3).map((each, index) => top[index] * top[3] + each * (1 - top[3])), 1];
  const isShape = (element) => element instanceof SVGElement && element.localName !== "svg";
  const shapeBehind = (element) => {
    for (let group = element; group && isShape(group); group = group.parentNode) {
      const shapes = [...group.parentNode.children].filter((each) => /^(rect|path|circle)$/.test(each.localName));
      const filled = shapes.map((each) => getComputedStyle(each).fill).filter((fill) => fill !== "none");
      if (filled.length) return rgba(filled[0]);
    }
    return [0, 0, 0, 0];
  };
  const behind = (element) => {
    if (!element) return rgba("Canvas");
    if (isShape(element)) return over(shapeBehind(element), behind(element.closest("svg")));
    return over(rgba(getComputedStyle(element).backgroundColor), behind(element.parentElement));
  };
  const light = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((each) => {
      const share = each / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const checked = [];
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (texts.currentNode.data.trim() && element.checkVisibility({ checkVisibilityCSS: true })) checked.push(element);
  }
  for (const field of document.querySelectorAll("input, textarea, select")) checked.push(field);
  for (const element of new Set(checked)) {
    if (element.closest("title, desc, noscript, option")) continue;
    const style = getComputedStyle(element);
    const back = behind(element);
    const front = over(rgba(isShape(element) ? style.fill : style.color), back);
    const [dark, bright] = [light(front), light(back)].sort((a, b) => a - b);
    const ratio = (bright + 0.05) / (dark + 0.05);
    if (ratio < 4.5) found.push(`${ratio.toFixed(2)} ${element.localName} “${element.textContent.slice(0, 40)}”`);
  }
  return [checked.length, found];
}
