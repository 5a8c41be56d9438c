"""`sps plan --spare-layers` as a user meets it."""

import json


def test_each_set_is_a_drafter_to_paste(sps, pair, tmp_path):
    data = tmp_path / "prompts.jsonl"
    data.write_text(json.dumps({"id": "1", "prompt": "the cat sat"}) + "\n")
    asked = ("--target", pair.target, "--prompts", str(data), "-n", "8", "--engine", "eager")
    ran = sps("plan", "--spare-layers", *asked, "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert found["texts"] == 1
    assert all(0 <= each["alpha"] <= 1 and each["cost"] < 1 for each in found["sets"])
    best = max(found["sets"], key=lambda each: each["gain"])
    assert f"--drafter {best['drafter']} -k {best['k']} " in found["command"]
    made = sps("generate", "hi", *asked[:2], "-n", "4", "--drafter", best["drafter"], "--seed", "1")
    assert made.code == 0, made.err
    several = sps("plan", "--spare-layers", *asked, "--verifier", "sps", "--verifier", "block")
    assert (several.code, "with --spare-layers: expected one" in several.err) == (2, True)
