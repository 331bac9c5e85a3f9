import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

export default defineConfig({
  plugins: [svelte({ configFile: false })],
  test: { include: ["tests/*.test.ts"], setupFiles: ["tests/page.ts"] },
});
