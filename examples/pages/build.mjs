// Builds the pages of all examples, or the named ones: `npm run build [NAME…]`. The output is ../NAME/page, or OUT/NAME/page.
// The studio is part of the package: its output is src/sapwood/studio/page.
// In a project that `sapwood new` created, the page is in the folder `page`, and its output is ../page.
import { readdirSync, existsSync } from "node:fs";
import { resolve } from "node:path";
import react from "@vitejs/plugin-react";
import { build } from "vite";

const here = import.meta.dirname;
const out = process.env.OUT ?? resolve(here, "..");
const studio = process.env.OUT ? resolve(out, "studio") : resolve(here, "../../src/sapwood/studio");
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
      outDir: name === "page" ? resolve(out, "page") : name === "studio" ? resolve(studio, "page") : resolve(out, name, "page"),
      emptyOutDir: true,
      chunkSizeWarningLimit: 1000,
      license: { fileName: "licenses.md" },
      // No hashes in the file names: the server makes clients revalidate the files.
      rolldownOptions: { output: { entryFileNames: "page.js", chunkFileNames: "[name].js", assetFileNames: "page[extname]" } },
    },
  });
  console.log(`${name}: built`);
}
