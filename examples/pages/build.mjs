// Builds the pages of all examples, or the named ones: `npm run build [NAME…]`. The output is ../NAME/page, or OUT/NAME/page.
// A page with a file output.json has its output in the folder that this names.
// In a project that `sapwood new` created, the page is in the folder `page`, and its output is ../page.
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { resolve } from "node:path";
import react from "@vitejs/plugin-react";
import { build } from "vite";

const here = import.meta.dirname;
const out = process.env.OUT ?? resolve(here, "..");
const named = process.argv.slice(2);
const pages = readdirSync(here).filter((name) => existsSync(resolve(here, name, "index.html")) && (!named.length || named.includes(name)));

function output(name) {
  const told = resolve(here, name, "output.json");
  if (!process.env.OUT && existsSync(told)) return resolve(here, name, JSON.parse(readFileSync(told, "utf8")).folder);
  return name === "page" ? resolve(out, "page") : resolve(out, name, "page");
}

for (const name of pages) {
  await build({
    root: resolve(here, name),
    base: "./",
    configFile: false,
    logLevel: "warn",
    plugins: [react()],
    build: {
      outDir: output(name),
      emptyOutDir: true,
      chunkSizeWarningLimit: 1000,
      license: { fileName: "licenses.md" },
      // No hashes in the file names: the server makes clients revalidate the files.
      rolldownOptions: { output: { entryFileNames: "page.js", chunkFileNames: "[name].js", assetFileNames: "page[extname]" } },
    },
  });
  console.log(`${name}: built`);
}
