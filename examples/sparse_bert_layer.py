"""A layer of BERT with sparse weights and sparse intermediate tensors."""

import torch
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertEncoder

import gossamer
from gossamer.nn.intermediate import SparseOutput, sites, sparsify_outputs

torch.manual_seed(0)
config = BertConfig(hidden_size=48, num_attention_heads=4, intermediate_size=192)
config.num_hidden_layers, config._attn_implementation = 1, "eager"
layer = BertEncoder(config).layer[0].eval()
x = torch.randn(8, 32, 48)
print("outputs:", ", ".join(site.name for site in sites(layer, x)))

# n:m:g weights, as in STen's paper: 2 of 4, each choice of rows in four columns of a tile.
projections = ["intermediate.dense", "attention.output.dense"]
print(gossamer.sparsify(layer, pattern="nmg:2:4:4", targets=projections))
attached = sparsify_outputs(
    layer,
    {
        # GELU gives compressed rows; the next product multiplies what is held.
        "intermediate.intermediate_act_fn/gelu": SparseOutput("threshold:0.1", temporary="csr"),
        "re:.*/softmax": "threshold:0.01",
        "output": "fraction:0.5",
    },
    x,
)
print(attached)


def call(x):
    y = layer(x)
    return y[0] if isinstance(y, tuple) else y


target = torch.tanh(x.flip(-1))
optimizer = torch.optim.AdamW(layer.parameters(), 3e-3)
for step in range(60):
    loss = (call(x) - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 59:
        print(f"step {step}: loss {loss.item():.3f}")

with torch.no_grad():
    y = call(x)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")(x)
    exported = torch.export.export(layer, (x,)).module()(x)
exported = exported[0] if isinstance(exported, tuple) else exported
print(f"zeros in the output: {float((y == 0).float().mean()):.2f}")
print(f"compiled differs by {float((compiled - y).abs().max()):.1e}")
print(f"exported differs by {float((exported - y).abs().max()):.1e}")
