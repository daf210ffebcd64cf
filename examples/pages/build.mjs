// Builds the page of every example, or of those named: `npm run build [NAME…]`. Each goes to ../NAME/page, or below OUT;
// and the folder `page`, as a project has it that `sapwood new` made, to ../page.
import { readdirSync, existsSync } from "node:fs";
import { resolve } from "node:path";
import react from "@vitejs/plugin-react";
import { build } from "vite";

const here = import.meta.dirname;
const out = process.env.OUT ?? resolve(here, "..");
const named = process.argv.slice(2);
const pages = readdirSync(here).filter((name) => existsSync(resolve(here, name, "index.html")) && (!named.length || named.includes(name)));

for (const name of pages) {
  await build({
    root: resolve(here, name),
    base: "./",
    configFile: false,
    logLevel: "warn",
    plugins: [react()],
    build: {
      outDir: name === "page" ? resolve(out, "page") : resolve(out, name, "page"),
      emptyOutDir: true,
      chunkSizeWarningLimit: 1000,
      license: { fileName: "licenses.md" },
      // The files keep their names from build to build: a server that has its files asked for anew needs no others.
      rolldownOptions: { output: { entryFileNames: "page.js", chunkFileNames: "[name].js", assetFileNames: "page[extname]" } },
    },
  });
  console.log(`${name}: built`);
}
