"""Tests the words for codes of the ledger."""

from __future__ import annotations

from enum import IntEnum

import pytest

from twinbus.ledger.recorder import NamespaceRole, OperationKind, Outcome, Stage
from twinbus.tables.code_words import code_of, word_of, words_of


@pytest.mark.parametrize("codes", [NamespaceRole, OperationKind, Stage, Outcome])
def test_every_code_has_its_own_word(codes: type[IntEnum]) -> None:
    assert [code_of(codes, word_of(code)) for code in codes] == list(codes)
    assert len(set(words_of(codes))) == len(codes)


def test_word_of_a_later_release_has_no_code() -> None:
    assert code_of(Stage, "code_25") is None
    assert code_of(Stage, "") is None
