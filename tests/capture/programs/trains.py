"""One optimizer, so that memory has owners: 1,000,000 parameters in fp32, Adam."""
import torch

model = torch.nn.Linear(1000, 1000, bias=False, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.ones(8, 1000, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
try:
    torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    print("caught", str(error)[:60])
