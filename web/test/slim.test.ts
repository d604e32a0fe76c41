// What stands in for the packages that Markdown's parser brings along.
import assert from "node:assert/strict";
import { test } from "node:test";
import { LinkifyIt } from "../src/slim/linkify";
import { format, parse } from "../src/slim/mdurl";

const found = (text: string): string[] => new LinkifyIt().match(text).map((one) => one.url);

test("addresses end before the sentence does", () => {
  assert.deepEqual(found("See https://a.test/x. And (http://b.test/y), or https://c.test/(z)!"), ["https://a.test/x", "http://b.test/y", "https://c.test/(z)"]);
  assert.deepEqual(found("**https://a.test/b** <https://c.test>"), ["https://a.test/b", "https://c.test"]);
  assert.deepEqual(found("javascript://a.test ftp://b.test a.test https:// http://..."), []);
});

test("a link's place is where it stands", () => {
  const text = "to HTTPS://A.test/b]";
  const [link] = new LinkifyIt().match(text);
  assert.equal(text.slice(link?.index, link?.lastIndex), "HTTPS://A.test/b");
  assert.equal(link?.schema, "https:");
  assert.equal(new LinkifyIt().matchAtStart("https://a.test b")?.url, "https://a.test");
  assert.equal(new LinkifyIt().matchAtStart(" https://a.test"), null);
});

test("hostile addresses take no time", () => {
  const hostile = [`https://${")".repeat(200_000)}`, `https://${"(".repeat(200_000)}`, "https://".repeat(25_000), "https://a)".repeat(20_000)];
  const began = performance.now();
  for (const text of hostile) found(text);
  assert.ok(performance.now() - began < 2000);
});

test("addresses are written as browsers write them", () => {
  assert.equal(format(parse("https://bücher.test/ä b")), "https://xn--bcher-kva.test/%C3%A4%20b");
  assert.equal(format(parse("../somewhere")), "../somewhere");
});
