const assert = require("node:assert");
const { slug } = require("/app/slug.js");

assert.equal(slug("Hello, World!"), "hello-world");
assert.equal(slug("  Two  words  "), "two-words");
