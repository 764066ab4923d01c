import pytest

from kvarve import settings
from kvarve.connectors.vllm.settings import Settings


def test_given_wins_over_environment_over_default():
    environ = {"KVARVE_HOLD_MS": "70", "KVARVE_ENDPOINT": "unix:///a", "KVARVE_STRICT": "yes", "KVARVE": "1",
               "KVARVE_VERIFY": "0", "KVARVE_BLOCK_TOKENS": ""}
    read = settings.read(Settings, {"hold_ms": 80}, environ)
    assert (read.hold_ms, read.endpoint, read.strict, read.verify, read.block_tokens) == (80, "unix:///a", True, False, 0)
    assert settings.read(Settings, {}, {}) == Settings()


@pytest.mark.parametrize("given, message", [
    ({"hold_msec": 5}, "did you mean 'hold_ms'?"),
    ({"zzz": 5}, "known: "),
    ({"hold_ms": "soon"}, "hold_ms is of type int"),
    ({"hold_ms": True}, "hold_ms is of type int"),
    ({"strict": 7}, "strict is of type bool"),
    ({"endpoint": 7}, "endpoint is of type str"),
    ({"hold_ms": 60_001}, "hold_ms lies in 0..60000"),
    ({"on_reset": "isolat"}, "on_reset is one of isolate, ignore"),
])
def test_what_is_wrong_is_named(given, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?").replace(".", r"\.")):
        settings.read(Settings, given, {})


def test_the_environment_is_checked_alike():
    with pytest.raises(ValueError, match="loader_threads lies in 1..16"):
        settings.read(Settings, {}, {"KVARVE_LOADER_THREADS": "99"})


def test_a_mistyped_variable_is_named_and_others_are_left_alone():
    with pytest.raises(ValueError, match="did you mean KVARVE_BLOCK_TOKENS"):
        settings.read(Settings, {}, {"KVARVE_BLOK_TOKENS": "64"})
    settings.read(Settings, {}, {"KVARVE": "1", "KVARVE_BUILD": "b", "KVARVE_ENGINE_PYTHON": "p", "KVARVE_MODELS": "m",
                                 "KVARVE_TEST_LONG": "1", "KVARVE_TEST_SEED": "3", "KVARVE_JOBS": "2"})


def test_every_setting_is_described():
    text = settings.describe(Settings())
    assert "endpoint='unix:///run/kvarve/kvarved.sock'" in text and "lookup_timeout_ms=20" in text


def test_what_reaches_another_host():
    given = {"token_file": "t", "tls_ca_file": "a", "tls_certificate_file": "c", "tls_key_file": "k",
             "tls_server_name": "n", "insecure_plaintext_off_loopback": True, "hedge_reads": True}
    assert settings.read(Settings, given, {}).remote() == given
