"""The products of all pairs, and their gradient, against the plain expression."""

import copy

import pytest
import torch

from outsize.models.interaction import Interaction


def plain(vectors):
    """The products as torch differentiates them."""
    num = vectors.shape[1]
    row, column = torch.tril_indices(num, num, offset=-1).to(vectors.device)
    products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
    return products.index_select(1, row * num + column)


def draw(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def values_and_gradient(interact, vectors):
    leaf = vectors.detach().requires_grad_()
    products = interact(leaf)
    weights = draw(*products.shape, dtype=products.dtype, seed=1).to(products.device)
    (gradient,) = torch.autograd.grad(products, leaf, weights)
    return products.detach(), gradient


def assert_equal_to_plain(vectors, interaction, **tolerance):
    """Values are those of the plain expression; gradients differ by the order of sums."""
    values, gradient = values_and_gradient(interaction, vectors)
    expected, expected_gradient = values_and_gradient(plain, vectors)
    assert torch.equal(values, expected)
    torch.testing.assert_close(gradient, expected_gradient, **tolerance)


def test_products_are_those_of_each_vector_with_the_ones_before():
    first, second, third = vectors = draw(3, 2)
    expected = torch.stack((second @ first, third @ first, third @ second))
    torch.testing.assert_close(Interaction(3)(vectors[None])[0], expected)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        (torch.float64, {"rtol": 1e-12, "atol": 1e-12}),
        (torch.float32, {"rtol": 1e-5, "atol": 1e-5}),
        # The plain gradient is two products rounded, and then their sum.
        (torch.bfloat16, {"rtol": 2e-2, "atol": 1e-1}),
    ],
)
@pytest.mark.parametrize("shape", [(5, 27, 16), (3, 2, 1), (4, 3, 7), (1, 5, 33)])
def test_values_and_gradients_are_those_of_the_plain_expression(shape, dtype, tolerance):
    assert_equal_to_plain(draw(*shape, dtype=dtype), Interaction(shape[1]), **tolerance)


def test_vectors_of_any_strides_are_read():
    vectors = draw(6, 4, 5).permute(2, 0, 1)
    assert not vectors.is_contiguous()
    assert_equal_to_plain(vectors, Interaction(6))


def test_gradients_of_any_strides_are_read():
    leaf = draw(4, 3, 5).requires_grad_()
    gradient = draw(3, 4).t()
    (found,) = torch.autograd.grad(Interaction(3)(leaf), leaf, gradient)
    (expected,) = torch.autograd.grad(plain(leaf), leaf, gradient)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("batch", "num"), [(0, 4), (3, 1), (0, 1)])
def test_a_batch_without_products_has_gradients_of_0(batch, num):
    leaf = draw(batch, num, 5).requires_grad_()
    products = Interaction(num)(leaf)
    assert products.shape == (batch, num * (num - 1) // 2)
    (gradient,) = torch.autograd.grad(products.sum(), leaf)
    assert torch.equal(gradient, torch.zeros_like(leaf))


def test_first_and_second_gradients_are_those_of_small_differences():
    vectors, interaction = draw(2, 4, 3, dtype=torch.float64).requires_grad_(), Interaction(4)
    assert torch.autograd.gradcheck(interaction, vectors)
    assert torch.autograd.gradgradcheck(interaction, vectors)


def test_without_gradients_the_products_are_the_same():
    vectors = draw(3, 4, 5).requires_grad_()
    with torch.no_grad():
        products = Interaction(4)(vectors)
    assert not products.requires_grad
    assert torch.equal(products, Interaction(4)(vectors))
    assert not Interaction(4)(vectors.detach()).requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_multiplies_in_bfloat16(dtype):
    leaf = draw(5, 6, 8, dtype=dtype).requires_grad_()
    gradients = []
    for interact in (Interaction(6), plain):
        with torch.autocast("cpu", torch.bfloat16):
            products = interact(leaf)
        assert products.dtype == torch.bfloat16
        gradients += torch.autograd.grad(products.float().square().sum(), leaf)
    assert gradients[0].dtype == dtype
    torch.testing.assert_close(*gradients, rtol=2e-2, atol=2e-1)


def test_gradients_are_the_same_in_deterministic_mode():
    vectors, interaction = draw(5, 6, 8), Interaction(6)
    usual = values_and_gradient(interaction, vectors)
    torch.use_deterministic_algorithms(True)
    try:
        again = values_and_gradient(interaction, vectors)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(one, two) for one, two in zip(usual, again, strict=True))


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated")  # torch does
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_it_compiles_in_one_graph(backend):
    torch.compiler.reset()
    interaction = Interaction(6)
    compiled = torch.compile(interaction, backend=backend, fullgraph=True)
    assert_equal_to_plain(draw(5, 6, 8), compiled)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_traces_take_other_batch_sizes(tmp_path):
    interaction = Interaction(6)
    traced = torch.jit.trace(interaction, draw(5, 6, 8).requires_grad_())
    traced.save(tmp_path / "traced.pt")
    again = torch.jit.load(tmp_path / "traced.pt")
    assert torch.equal(again(draw(2, 6, 8)), interaction(draw(2, 6, 8)))


def test_it_can_be_transformed():
    vectors, interaction = draw(5, 6, 8), Interaction(6)
    found = torch.func.grad(lambda given: interaction(given).square().sum())(vectors)
    expected = torch.func.grad(lambda given: plain(given).square().sum())(vectors)
    torch.testing.assert_close(found, expected)


def test_nothing_of_it_is_saved():
    assert not Interaction(4).state_dict()
    assert copy.deepcopy(Interaction(4)).num_pairs == 6


def test_a_first_vector_is_in_front_of_the_products_it_is_in():
    vectors, first = draw(5, 3, 7).requires_grad_(), draw(5, 7, seed=2).requires_grad_()
    joined = torch.cat((first.unsqueeze(1), vectors), dim=1)
    expected = torch.cat((first, plain(joined)), dim=1)
    found = Interaction(4)(vectors, first)
    assert torch.equal(found, expected)
    weights = draw(*found.shape, seed=1)
    gradients = torch.autograd.grad(found, (vectors, first), weights)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected, (vectors, first), weights))


def test_vectors_are_multiplied_in_the_type_of_the_first():
    vectors, first = draw(5, 3, 7, dtype=torch.float64), draw(5, 7)
    found = Interaction(4)(vectors, first)
    assert found.dtype == torch.float32
    assert torch.equal(found, Interaction(4)(vectors.float(), first))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_first", [True, False])
@pytest.mark.parametrize("dim", [16, 200])
def test_values_and_gradients_are_those_of_the_plain_expression_on_cuda(dim, has_first, dtype):
    close = {"rtol": 2e-2, "atol": 1.0} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
    vectors = draw(100, 27, dim, dtype=dtype).cuda()
    interaction = Interaction(27).cuda()

    def interact(leaf):
        if not has_first:
            return interaction(leaf)
        return interaction(leaf[:, 1:], leaf[:, 0])[:, dim:]

    found, expected = values_and_gradient(interact, vectors), values_and_gradient(plain, vectors)
    for ours, known in zip(found, expected, strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours, known, **close)


@pytest.mark.gpu
def test_second_gradients_are_those_of_torch_on_cuda():
    vectors, first = draw(5, 3, 7).cuda().requires_grad_(), draw(5, 7).cuda().requires_grad_()
    joined = torch.cat((first.unsqueeze(1), vectors), dim=1)
    penalties = []
    for features in (
        Interaction(4).cuda()(vectors, first),
        torch.cat((first, plain(joined)), dim=1),
    ):
        gradients = torch.autograd.grad(
            features.square().sum(), (vectors, first), create_graph=True
        )
        penalty = sum(gradient.square().sum() for gradient in gradients)
        penalties.append(torch.autograd.grad(penalty, (vectors, first)))
    torch.testing.assert_close(*penalties, rtol=1e-4, atol=1e-2)


@pytest.mark.gpu
def test_autocast_multiplies_in_bfloat16_on_cuda():
    vectors, first = draw(5, 3, 7).cuda().requires_grad_(), draw(5, 7).cuda()
    interaction = Interaction(4).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        assert interaction(vectors, first.bfloat16()).dtype == torch.bfloat16
        assert Interaction(3).cuda()(vectors).dtype == torch.bfloat16


@pytest.mark.gpu
def test_a_step_can_be_captured():
    vectors, interaction = draw(50, 27, 16).cuda(), Interaction(27).cuda()
    expected = values_and_gradient(interaction, vectors)
    leaf = vectors.clone().requires_grad_()
    weights = draw(50, 351, seed=1).cuda()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            torch.autograd.grad(interaction(leaf), leaf, weights)
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        products = interaction(leaf)
        (gradient,) = torch.autograd.grad(products, leaf, weights)
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(products, expected[0])
    torch.testing.assert_close(gradient, expected[1])
