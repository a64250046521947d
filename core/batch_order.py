"""In which order a window of a batch's lines is run: lines whose prompts begin alike follow one another.

The engine then computes a shared beginning once and finds it in its prefix cache, instead of losing it to the
prompts in between. Sorting by text is a walk of the prompts' prefix tree, depth first, which is the order with
the most hits for a cache that holds one path (Zheng et al., SGLang, 2024, theorem 3.1).
"""

from collections.abc import Sequence

MIN_SHARED_BYTES = 256  # some 64 tokens: less is not worth leaving the file's order


def order_by_prefix(prompts: Sequence[bytes], min_shared_bytes: int = MIN_SHARED_BYTES) -> list[int]:
    """Return the places of the prompts in running order.

    Prompts that share a beginning of at least so many bytes stand together, sorted; groups, and prompts alone,
    keep the order in which their first one stood.
    """
    groups: dict[bytes, list[int]] = {}
    for place, prompt in enumerate(prompts):
        groups.setdefault(prompt[:min_shared_bytes], []).append(place)
    return [
        place
        for group in groups.values()
        for place in sorted(group, key=lambda place: (prompts[place], place))
    ]
