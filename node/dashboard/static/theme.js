// Runs before the page is painted, so that no other theme flashes up first.
const theme = localStorage.getItem("rumormill-theme");
if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
