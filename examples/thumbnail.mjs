// A thumbnail per job: leasehold work photos -j 4 -- node examples/thumbnail.mjs
// The payload is {"file": …, "sizes": […]}.
import { readFileSync, writeSync } from "node:fs";

const fd = Number(process.env.LEASEHOLD_FD);
const tell = (line) => fd && writeSync(fd, line + "\n");

// SIGTERM means that the lease is lost or the worker stops: leave nothing half done.
process.on("SIGTERM", () => process.exit(75));

const { file, sizes } = JSON.parse(readFileSync(0, "utf8"));
if (!file) {
  console.error("no file in the payload");
  process.exit(65);
}
for (const [n, size] of sizes.entries()) {
  tell(`stage ${size}px`);
  await new Promise((done) => setTimeout(done, 10)); // stands for the work
  tell(`progress ${Math.round((100 * (n + 1)) / sizes.length)}`);
}
console.log(JSON.stringify({ file, made: sizes.length }));
