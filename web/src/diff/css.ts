/** CSS, SCSS and Less by their shapes: the names of all properties and tags, as others list them, take ten times the room. */

import type { HLJSApi, Language, Mode } from "highlight.js";

export default function css(hljs: HLJSApi): Language {
  const values: Mode[] = [
    hljs.C_BLOCK_COMMENT_MODE,
    { scope: "comment", begin: /(?:^|\s)\/\//, end: /$/ },
    hljs.APOS_STRING_MODE,
    hljs.QUOTE_STRING_MODE,
    { scope: "keyword", begin: /@[a-z-]{2,40}/ },
    { scope: "variable", begin: /\$[a-z][\w-]{0,80}|--[a-z][\w-]{0,80}/ },
    { scope: "built_in", begin: /[a-z][a-z-]{0,40}(?=\()/ },
    { scope: "meta", begin: /!(?:important|default)\b/ },
  ];
  const number: Mode = { scope: "number", begin: /[-+]?(?:\d*\.)?\d{1,20}(?:%|[a-z]{1,4}\b)?/, relevance: 0 };
  const block: Mode = {
    begin: /\{/,
    end: /\}/,
    contains: [
      { scope: "attribute", begin: /(?:--)?[a-z][\w-]{0,80}(?=\s{0,4}:(?!:))/ },
      ...values,
      { scope: "number", begin: /#[\da-f]{3,8}\b/ },
      number,
      { scope: "selector-class", begin: /\.[a-z_-][\w-]{0,80}/ },
      "self",
    ],
  };
  return {
    name: "CSS",
    case_insensitive: true,
    contains: [
      ...values,
      { scope: "selector-id", begin: /#[a-z_-][\w-]{0,80}/ },
      { scope: "selector-class", begin: /\.[a-z_-][\w-]{0,80}/ },
      { scope: "selector-pseudo", begin: /::?[a-z-]{2,40}/ },
      { scope: "selector-tag", begin: /\b[a-z][\w-]{0,40}\b/, relevance: 0 },
      number,
      block,
    ],
  };
}
