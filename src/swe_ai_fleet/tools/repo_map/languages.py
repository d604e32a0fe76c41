"""The parsed languages, with a query for the definitions and references of each.

The queries are our own: those of the grammars find only calls in some languages, and also comments in others.
`@definition` with its `@name` is a definition, `@scope` contains definitions, `@reference` is a use of a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """A language, with the module and function of its grammar. Names are resolved within a `family` of languages."""

    name: str
    family: str
    module: str
    function: str
    query: str


def _named(name: str, kinds: str) -> str:
    """The definitions of these kinds, whose names are nodes of the kind `name`."""
    return "".join(f"({kind} name: ({name}) @name) @definition\n" for kind in kinds.split())


def _used(name: str, fields: str) -> str:
    """The uses of names in these fields of nodes (`call.function`), or in any field of a node (`arguments`)."""
    pairs = (field.partition(".") for field in fields.split())
    return "".join(f"({node}{f' {field}:' if field else ''} ({name}) @reference)\n" for node, _, field in pairs)


_TYPES = "(type_identifier) @reference\n"

_C = (
    """
(function_declarator declarator: (identifier) @name) @definition
(struct_specifier name: (type_identifier) @name body: (_)) @definition
(union_specifier name: (type_identifier) @name body: (_)) @definition
(enum_specifier name: (type_identifier) @name body: (_)) @definition
(type_definition declarator: (type_identifier) @name) @definition
"""
    + _named("identifier", "preproc_def preproc_function_def")
    + _used("identifier", "call_expression.function argument_list")
    + _used("field_identifier", "field_expression.field")
    + _TYPES
)

_CPP = (
    _C
    + """
(class_specifier name: (type_identifier) @name body: (_)) @definition
(namespace_definition name: (_) @name) @definition
(alias_declaration name: (type_identifier) @name) @definition
(function_declarator declarator: (field_identifier) @name) @definition
(function_declarator declarator: (qualified_identifier name: (identifier) @name)) @definition
(call_expression function: (qualified_identifier name: (identifier) @reference))
(template_function name: (identifier) @reference)
"""
)

_GO = (
    _named("identifier", "function_declaration")
    + _named("field_identifier", "method_declaration")
    + _named("type_identifier", "type_spec")
    + """
(source_file (const_declaration (const_spec name: (identifier) @name) @definition))
(source_file (var_declaration (var_spec name: (identifier) @name) @definition))
"""
    + _used("identifier", "call_expression.function argument_list")
    + _used("field_identifier", "selector_expression.field")
    + _TYPES
)

_JAVA = (
    _named("identifier", "class_declaration interface_declaration enum_declaration record_declaration")
    + _named("identifier", "annotation_type_declaration method_declaration constructor_declaration")
    + _used("identifier", "method_invocation.name method_invocation.object marker_annotation.name annotation.name")
    + _TYPES
)

_ECMASCRIPT = (
    _named("identifier", "function_declaration generator_function_declaration")
    + _named("property_identifier", "method_definition")
    + """
(variable_declarator name: (identifier) @name value: [(arrow_function) (function_expression)]) @definition
(program (lexical_declaration (variable_declarator name: (identifier) @name) @definition))
(export_statement (lexical_declaration (variable_declarator name: (identifier) @name) @definition))
(assignment_expression
  left: (member_expression property: (property_identifier) @name)
  right: [(arrow_function) (function_expression)]) @definition
(pair key: (property_identifier) @name value: [(arrow_function) (function_expression)]) @definition
"""
    + _used("identifier", "call_expression.function new_expression.constructor arguments import_specifier.name")
    + _used("property_identifier", "member_expression.property")
)

_JSX = _used("identifier", "jsx_opening_element.name jsx_self_closing_element.name")

_JAVASCRIPT = _ECMASCRIPT + _JSX + _named("identifier", "class_declaration") + _used("identifier", "class_heritage")

_TYPESCRIPT = (
    _ECMASCRIPT
    + _named("type_identifier", "class_declaration abstract_class_declaration interface_declaration")
    + _named("type_identifier", "type_alias_declaration")
    + _named("identifier", "enum_declaration internal_module function_signature")
    + _named("property_identifier", "method_signature abstract_method_signature")
    + _used("identifier", "extends_clause.value")
    + _TYPES
)

_PYTHON = (
    _named("identifier", "class_definition function_definition")
    + """
(module (expression_statement (assignment left: (identifier) @name) @definition))
(import_from_statement name: (dotted_name (identifier) @reference))
(import_from_statement name: (aliased_import name: (dotted_name (identifier) @reference)))
"""
    + _used("identifier", "call.function attribute.attribute argument_list type generic_type decorator")
)

_RUBY = """
(method name: (_) @name) @definition
(singleton_method name: (_) @name) @definition
(class name: (constant) @name) @definition
(class name: (scope_resolution name: (constant) @name)) @definition
(module name: (constant) @name) @definition
(module name: (scope_resolution name: (constant) @name)) @definition
(program (assignment left: (constant) @name) @definition)
(call method: (identifier) @reference)
(constant) @reference
"""

_RUST = (
    _named("type_identifier", "struct_item enum_item union_item type_item trait_item")
    + _named("identifier", "function_item function_signature_item macro_definition const_item static_item")
    + """
(mod_item name: (identifier) @name body: (_)) @definition
(impl_item) @scope
"""
    + _used("identifier", "call_expression.function scoped_identifier.name macro_invocation.macro use_list arguments")
    + _used("field_identifier", "field_expression.field")
    + _TYPES
)


def _language(name: str, family: str, query: str, *, module: str = "", function: str = "language") -> Language:
    module = module or f"tree_sitter_{name}"
    return Language(name=name, family=family, module=module, function=function, query=query)


LANGUAGES: Mapping[str, Language] = {
    language.name: language
    for language in (
        _language("c", "c", _C),
        _language("cpp", "c", _CPP),
        _language("go", "go", _GO),
        _language("java", "java", _JAVA),
        _language("javascript", "javascript", _JAVASCRIPT),
        _language("python", "python", _PYTHON),
        _language("ruby", "ruby", _RUBY),
        _language("rust", "rust", _RUST),
        _language(
            "typescript", "javascript", _TYPESCRIPT, module="tree_sitter_typescript", function="language_typescript"
        ),
        _language("tsx", "javascript", _TYPESCRIPT + _JSX, module="tree_sitter_typescript", function="language_tsx"),
    )
}
"""By name."""

_SUFFIXES = {
    "c": ("c",),
    "cpp": ("cc", "cpp", "cxx", "c++", "h", "hh", "hpp", "hxx", "ipp"),
    "go": ("go",),
    "java": ("java",),
    "javascript": ("js", "jsx", "mjs", "cjs"),
    "python": ("py", "pyi"),
    "ruby": ("rb", "rake", "gemspec"),
    "rust": ("rs",),
    "typescript": ("ts", "mts", "cts"),
    "tsx": ("tsx",),
}
_BY_SUFFIX = {suffix: name for name, suffixes in _SUFFIXES.items() for suffix in suffixes}


def language_of(path: str) -> str:
    """The name of a file's language by its path; empty if the language is not parsed."""
    name = path.rpartition("/")[2]
    return _BY_SUFFIX.get(name.rpartition(".")[2], "") if "." in name else ""
