"""The languages that are parsed, and what counts as a definition or a reference in each.

The queries are ours: those that the grammars bring see calls only in some languages and comments in others.
`@definition` with its `@name` is a definition, `@scope` only holds others together, `@reference` is a use of a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """A grammar: the module and its function that gives it. Names are looked up within a `family` of languages."""

    name: str
    family: str
    module: str
    function: str
    query: str


_C = """
(function_declarator declarator: (identifier) @name) @definition
(struct_specifier name: (type_identifier) @name body: (_)) @definition
(union_specifier name: (type_identifier) @name body: (_)) @definition
(enum_specifier name: (type_identifier) @name body: (_)) @definition
(type_definition declarator: (type_identifier) @name) @definition
(preproc_def name: (identifier) @name) @definition
(preproc_function_def name: (identifier) @name) @definition
(call_expression function: (identifier) @reference)
(field_expression field: (field_identifier) @reference)
(argument_list (identifier) @reference)
(type_identifier) @reference
"""

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

_GO = """
(function_declaration name: (identifier) @name) @definition
(method_declaration name: (field_identifier) @name) @definition
(type_spec name: (type_identifier) @name) @definition
(source_file (const_declaration (const_spec name: (identifier) @name) @definition))
(source_file (var_declaration (var_spec name: (identifier) @name) @definition))
(call_expression function: (identifier) @reference)
(selector_expression field: (field_identifier) @reference)
(argument_list (identifier) @reference)
(type_identifier) @reference
"""

_JAVA = """
(class_declaration name: (identifier) @name) @definition
(interface_declaration name: (identifier) @name) @definition
(enum_declaration name: (identifier) @name) @definition
(record_declaration name: (identifier) @name) @definition
(annotation_type_declaration name: (identifier) @name) @definition
(method_declaration name: (identifier) @name) @definition
(constructor_declaration name: (identifier) @name) @definition
(method_invocation name: (identifier) @reference)
(method_invocation object: (identifier) @reference)
(marker_annotation name: (identifier) @reference)
(annotation name: (identifier) @reference)
(type_identifier) @reference
"""

_ECMASCRIPT = """
(function_declaration name: (identifier) @name) @definition
(generator_function_declaration name: (identifier) @name) @definition
(method_definition name: (property_identifier) @name) @definition
(variable_declarator name: (identifier) @name value: [(arrow_function) (function_expression)]) @definition
(program (lexical_declaration (variable_declarator name: (identifier) @name) @definition))
(export_statement (lexical_declaration (variable_declarator name: (identifier) @name) @definition))
(assignment_expression
  left: (member_expression property: (property_identifier) @name)
  right: [(arrow_function) (function_expression)]) @definition
(pair key: (property_identifier) @name value: [(arrow_function) (function_expression)]) @definition
(call_expression function: (identifier) @reference)
(member_expression property: (property_identifier) @reference)
(new_expression constructor: (identifier) @reference)
(arguments (identifier) @reference)
(import_specifier name: (identifier) @reference)
"""

_JSX = """
(jsx_opening_element name: (identifier) @reference)
(jsx_self_closing_element name: (identifier) @reference)
"""

_JAVASCRIPT = (
    _ECMASCRIPT
    + _JSX
    + """
(class_declaration name: (identifier) @name) @definition
(class_heritage (identifier) @reference)
"""
)

_TYPESCRIPT = (
    _ECMASCRIPT
    + """
(class_declaration name: (type_identifier) @name) @definition
(abstract_class_declaration name: (type_identifier) @name) @definition
(interface_declaration name: (type_identifier) @name) @definition
(type_alias_declaration name: (type_identifier) @name) @definition
(enum_declaration name: (identifier) @name) @definition
(internal_module name: (identifier) @name) @definition
(function_signature name: (identifier) @name) @definition
(method_signature name: (property_identifier) @name) @definition
(abstract_method_signature name: (property_identifier) @name) @definition
(extends_clause value: (identifier) @reference)
(type_identifier) @reference
"""
)

_PYTHON = """
(class_definition name: (identifier) @name) @definition
(function_definition name: (identifier) @name) @definition
(module (expression_statement (assignment left: (identifier) @name) @definition))
(call function: (identifier) @reference)
(attribute attribute: (identifier) @reference)
(argument_list (identifier) @reference)
(type (identifier) @reference)
(generic_type (identifier) @reference)
(decorator (identifier) @reference)
(import_from_statement name: (dotted_name (identifier) @reference))
(import_from_statement name: (aliased_import name: (dotted_name (identifier) @reference)))
"""

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

_RUST = """
(struct_item name: (type_identifier) @name) @definition
(enum_item name: (type_identifier) @name) @definition
(union_item name: (type_identifier) @name) @definition
(type_item name: (type_identifier) @name) @definition
(trait_item name: (type_identifier) @name) @definition
(function_item name: (identifier) @name) @definition
(function_signature_item name: (identifier) @name) @definition
(mod_item name: (identifier) @name body: (_)) @definition
(macro_definition name: (identifier) @name) @definition
(const_item name: (identifier) @name) @definition
(static_item name: (identifier) @name) @definition
(impl_item) @scope
(call_expression function: (identifier) @reference)
(scoped_identifier name: (identifier) @reference)
(field_expression field: (field_identifier) @reference)
(macro_invocation macro: (identifier) @reference)
(use_list (identifier) @reference)
(arguments (identifier) @reference)
(type_identifier) @reference
"""


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
    """The name of the language that a file of this path is in; empty where it is none of ours."""
    name = path.rpartition("/")[2]
    return _BY_SUFFIX.get(name.rpartition(".")[2], "") if "." in name else ""
