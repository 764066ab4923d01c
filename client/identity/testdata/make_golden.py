#!/usr/bin/env python3
"""Writes tokens.json: a key set and tokens, good ones and forged ones, each with the fault it must be refused for.

Shares no code with kvarve: PyJWT and cryptography sign, the forgeries are put together by hand. The keys are new at
each run and are kept nowhere, so the file is made once.  usage: make_golden.py > tokens.json
"""
import base64
import hashlib
import hmac
import json
import sys

import jwt
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa, utils

NOW = 1_800_000_000


def b64(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def number(value, size=None):
    return b64(value.to_bytes(size or (value.bit_length() + 7) // 8, "big"))


EC, EC_OTHER, P384 = (ec.generate_private_key(c) for c in (ec.SECP256R1(), ec.SECP256R1(), ec.SECP384R1()))
RSA = rsa.generate_private_key(65537, 2048)
RSA_OTHER = rsa.generate_private_key(65537, 2048)


def public_pem(key):
    return key.public_key().public_bytes(serialization.Encoding.PEM,
                                         serialization.PublicFormat.SubjectPublicKeyInfo)


def ec_jwk(kid, key):
    n = key.public_key().public_numbers()
    return {"kty": "EC", "kid": kid, "crv": "P-256", "x": number(n.x, 32), "y": number(n.y, 32), "alg": "ES256"}


def rsa_jwk(kid, key):
    n = key.public_key().public_numbers()
    return {"kty": "RSA", "kid": kid, "use": "sig", "n": number(n.n), "e": number(n.e)}


CLAIMS = {"iss": "https://issuer.example", "sub": "engine-1", "aud": "kvarve", "jti": "0123-abc", "tenant": "team-a",
          "verbs": ["lookup", "read", "write"], "iat": NOW - 100, "nbf": NOW - 100, "exp": NOW + 3600}


def claims(**changes):
    result = {**CLAIMS, **changes}
    return {name: value for name, value in result.items() if value is not None}


def signed(payload, key=EC, alg="ES256", kid="ec-1", **headers):
    headers = {**({"kid": kid} if kid else {}), **headers}
    return jwt.encode(payload, key, algorithm=alg, headers=headers)


def by_hand(header, payload, sign):
    """`header` as text or dict; `sign` makes the signature's bytes of the signing input."""
    text = header if isinstance(header, str) else json.dumps(header)
    body = payload if isinstance(payload, str) else json.dumps(payload)
    start = b64(text.encode()) + "." + b64(body.encode())
    return start + "." + b64(sign(start.encode()))


def es256(data):
    r, s = utils.decode_dss_signature(EC.sign(data, ec.ECDSA(hashes.SHA256())))
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def hs256(secret):
    return lambda data: hmac.new(secret, data, hashlib.sha256).digest()


def es_header(**changes):
    return {"alg": "ES256", "typ": "JWT", "kid": "ec-1", **changes}


def tokens():
    good = signed(claims())
    head, body, signature = good.split(".")
    yield "none", "es256", good
    yield "none", "rs256", signed(claims(), RSA, "RS256", "rsa-1")
    yield "none", "audience list", signed(claims(aud=["other", "kvarve"]))
    yield "none", "by hand", by_hand(es_header(), claims(), es256)
    yield "none", "only what is required", signed(claims(iss=None, sub=None, iat=None, nbf=None))
    yield "none", "begins within the skew", signed(claims(nbf=NOW + 30))
    yield "none", "tenant in another script", signed(claims(tenant="équipe ß"))
    yield "expired", "expired", signed(claims(exp=NOW - 1))
    yield "expired", "expires now", signed(claims(exp=NOW))
    yield "not_yet_valid", "begins later", signed(claims(nbf=NOW + 31))
    yield "audience", "other audience", signed(claims(aud="other"))
    yield "audience", "prefix of the audience", signed(claims(aud="kvarv"))
    yield "audience", "no audience in the list", signed(claims(aud=[]))
    yield "claims", "no audience", signed(claims(aud=None))
    yield "claims", "no id", signed(claims(jti=None))
    yield "claims", "id with a space", signed(claims(jti="a b"))
    yield "claims", "id too long", signed(claims(jti="x" * 129))
    yield "claims", "no tenant", signed(claims(tenant=None))
    yield "claims", "empty tenant", signed(claims(tenant=""))
    yield "claims", "tenant with a line end", signed(claims(tenant="team-a\n"))
    yield "claims", "tenant list", signed(claims(tenant=["team-a"]))
    yield "claims", "no verbs", signed(claims(verbs=None))
    yield "claims", "empty verbs", signed(claims(verbs=[]))
    yield "claims", "unknown verb", signed(claims(verbs=["lookup", "admin"]))
    yield "claims", "verbs as a text", signed(claims(verbs="lookup"))
    yield "claims", "no end", signed(claims(exp=None))
    yield "claims", "end as a text", by_hand(es_header(), claims(exp=str(NOW + 60)), es256)
    yield "claims", "end as a fraction", by_hand(es_header(), claims(exp=NOW + 60.5), es256)
    yield "signature", "end beyond 64 bits", by_hand(es_header(), json.dumps(claims()).replace(
        str(NOW + 3600), "18446744073709551615"), es256)
    yield "claims", "negative begin", by_hand(es_header(), claims(nbf=-1), es256)
    yield "claims", "claims that are a list", by_hand(es_header(), "[1]", es256)
    yield "signature", "claims that are no json", by_hand(es_header(), "{", es256)
    yield "algorithm", "alg none", by_hand({"alg": "none", "typ": "JWT", "kid": "ec-1"}, claims(), lambda data: b"")
    yield "algorithm", "alg None", by_hand(es_header(alg="None"), claims(), lambda data: b"")
    yield "algorithm", "hs256 with the public key", by_hand(es_header(alg="HS256"), claims(), hs256(public_pem(EC)))
    yield "algorithm", "hs256 with the rsa key", by_hand({"alg": "HS256", "kid": "rsa-1"}, claims(),
                                                         hs256(public_pem(RSA)))
    yield "algorithm", "hs256 with nothing", by_hand(es_header(alg="HS256"), claims(), hs256(b""))
    yield "algorithm", "es384", signed(claims(), P384, "ES384")
    yield "algorithm", "ps256", signed(claims(), RSA, "PS256", "rsa-1")
    yield "algorithm", "rs512", signed(claims(), RSA, "RS512", "rsa-1")
    yield "algorithm", "rs256 named with the ec key", signed(claims(), RSA, "RS256", "ec-1")
    yield "algorithm", "lower case", by_hand(es_header(alg="es256"), claims(), es256)
    yield "algorithm", "alg twice, hs256 last", by_hand('{"alg":"ES256","kid":"ec-1","alg":"HS256"}', claims(),
                                                       hs256(public_pem(EC)))
    yield "signature", "alg twice, hs256 first", by_hand('{"alg":"HS256","kid":"ec-1","alg":"ES256"}', claims(),
                                                         hs256(public_pem(EC)))
    yield "unknown_key", "unknown key", signed(claims(), kid="ec-2")
    yield "unknown_key", "no key id", signed(claims(), kid=None)
    yield "signature", "another key's signature", signed(claims(), EC_OTHER)
    yield "signature", "another rsa key's signature", signed(claims(), RSA_OTHER, "RS256", "rsa-1")
    yield "signature", "claims changed", head + "." + b64(json.dumps(claims(tenant="team-b")).encode()) + "." + signature
    yield "signature", "header changed", b64(json.dumps(es_header(x=1)).encode()) + "." + body + "." + signature
    yield "signature", "signature cut", head + "." + body + "." + signature[:-6]
    yield "signature", "signature empty", head + "." + body + "."
    yield "signature", "signature of zeros", head + "." + body + "." + b64(bytes(64))
    yield "signature", "signature in DER", by_hand(es_header(), claims(),
                                                   lambda data: EC.sign(data, ec.ECDSA(hashes.SHA256())))
    yield "signature", "signature of ones", head + "." + body + "." + b64(bytes([0] * 31 + [1]) * 2)
    yield "malformed", "padding", good + "=="
    yield "malformed", "four parts", good + ".x"
    yield "malformed", "two parts", head + "." + body
    yield "malformed", "space", good + " "
    yield "malformed", "line end", good + "\n"
    yield "malformed", "standard base64", good.replace("_", "/").replace("-", "+") + "+///"
    yield "malformed", "crit", signed(claims(), crit=["exp"])
    yield "malformed", "another type", by_hand(es_header(typ="at+jwt"), claims(), es256)
    yield "malformed", "key id as a number", by_hand(es_header(kid=1), claims(), es256)
    yield "malformed", "header list", by_hand("[]", claims(), es256)
    yield "malformed", "too long", signed(claims(sub="x" * 4000))
    yield "malformed", "empty", ""
    yield "malformed", "dots", ".."


def main():
    keys = {"keys": [ec_jwk("ec-1", EC), rsa_jwk("rsa-1", RSA)]}
    rows = [{"fault": fault, "name": name, "token": token} for fault, name, token in tokens()]
    json.dump({"now": NOW, "issuer": CLAIMS["iss"], "keys": keys,
               "weak_key": rsa_jwk("weak", rsa.generate_private_key(65537, 1024)), "tokens": rows}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
