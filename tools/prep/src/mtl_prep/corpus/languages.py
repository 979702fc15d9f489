"""Kinds of text files by suffix: prose, markup, programming languages."""

TABLE = """
text            .txt .text
Markdown        .md .markdown
markup          .rst .adoc .org .tex .pod .html .htm .xml
Python          .py .pyi .pyx
C               .c .h
C++             .cc .cpp .cxx .hpp .hh
CUDA            .cu .cuh
Objective-C     .m .mm
Rust            .rs
Go              .go
Zig             .zig
Nim             .nim
D               .d
Java            .java
Kotlin          .kt
Scala           .scala
C#              .cs
F#              .fs
JavaScript      .js .mjs .jsx .vue
TypeScript      .ts .tsx
CSS             .css .scss
Ruby            .rb
PHP             .php
Perl            .pl .pm
Lua             .lua
R               .r
Julia           .jl
Haskell         .hs
OCaml           .ml
Clojure         .clj
Elixir          .ex
Erlang          .erl
Lisp            .lisp .el .scm
Swift           .swift
Dart            .dart
Fortran         .f90 .f
assembly        .asm .s
shell           .sh .bash .zsh .fish .ps1
SQL             .sql
configuration   .yaml .yml .toml .ini .cfg .cmake .mk
Verilog         .v .sv
VHDL            .vhd
"""
LANGUAGES = {suffix: line[:16].strip() for line in TABLE.splitlines() if line for suffix in line[16:].split()}
