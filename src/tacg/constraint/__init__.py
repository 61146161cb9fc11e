"""What an answer may look like: choices, a regular expression or a JSON schema, as an automaton over tokens."""

from tacg.constraint.automaton import Automaton, compile_pattern
from tacg.constraint.pattern import pattern_of, patterns_of
from tacg.constraint.reach import Reach

__all__ = ["Automaton", "Reach", "compile_pattern", "pattern_of", "patterns_of"]
