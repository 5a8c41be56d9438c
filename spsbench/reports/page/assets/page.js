// The viewer is drawn from the data in this file; nothing is fetched.
const data = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
document.querySelector("header").append(h("button", { type: "button", class: "theme", onclick: () => { root.dataset.theme = isDark() ? "light" : "dark"; } }, "Light or dark"));
if (data.traces.length) new Viewer(data, document.getElementById("viewer"));
root.dataset.ready = "yes";
