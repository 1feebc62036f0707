# sell.py
from shop import PlaceOrder, dispatcher

with dispatcher.publishing():
    for sku, quantity in [("tea", 2), ("coffee", 1)]:
        print("posted", sku, "as", dispatcher.post(PlaceOrder(sku, quantity)))
